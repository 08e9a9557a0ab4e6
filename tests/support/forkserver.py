"""Processes that need not import a framework each: an import takes seconds of processor time, a fork after it a tenth.

One parent for each environment imports the framework with autogpu switched off, and forks a child for each script. The
child has an environment of its own, does anew what ``site`` does at a start, which is to load the installed hook, and
has forgotten the framework's name. So the script's own import goes through the hook and runs the body of TensorFlow's
package between autogpu's two steps; the thousands of modules below are in place. The body of another framework, which
can't be run twice, is left out. An import touches no CUDA and asks nothing of the driver, which is why the child can be
on any server.

What differs from a fresh process: an import takes no time, what the framework reads of the environment then has been
read, a script must say ``import tensorflow`` before it names a part of it, and the end takes no module apart. Tests
compare both.

The parent is ``forked.py`` beside this file, run by the Python of the environment under test.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
from pathlib import Path
from typing import Any, Mapping

from tests.support.forked_job import ForkedJob

# Of the import in the parent, when other tests have the processors.
IMPORT_TIMEOUT_S = 300

# What another process's environment says to autogpu, CUDA, TensorFlow or Python does not count in a new one.
STEERING = ("AUTOGPU", "CUDA_", "GPUSIM", "TF_", "JAX_", "XLA_", "PYTORCH_", "SLURM_", "PYTHON")

# Each keeps some 400 MB. One version's tests need these: without autogpu, with it, and with it but without a driver.
MOST_PARENTS = 3

PARENT = Path(__file__).with_name("forked.py")


class Forks:
    """Runs scripts as forks of processes that have imported a framework, one for each environment.

    Args:
        folder: For what they write; exists.
        framework: Its top-level module.
    """

    def __init__(self, folder: Path, framework: str = "tensorflow") -> None:
        self._folder = folder
        self._framework = framework
        self._started = 0
        # The one that was used last is the last one.
        self._parents: dict[tuple[str, ...], _Parent] = {}

    def run(
        self,
        python: Path,
        script: Path,
        *,
        environ: Mapping[str, str],
        folder: Path,
        timeout_s: int = 120,
        lease_file: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run ``script`` to its end. One that is late is killed, with what it has started: exit status ``-SIGKILL``.

        Args:
            environ: All of its environment.
            folder: Its working directory.
            lease_file: Where the UUIDs in its lease are written when it comes to its end, if it has one.
        """
        parent = self._parent(python, environ)
        outputs = [self._folder / name for name in ("stdout", "stderr")]
        case = {
            "script": str(script),
            "arguments": [],
            "folder": str(folder),
            "environ": dict(environ),
            "timeout_s": timeout_s,
            "input": os.devnull,
            "outputs": [str(output) for output in outputs],
            "lease_file": str(lease_file) if lease_file else None,
        }
        try:
            status = parent.exit_status(case)
        except BaseException:
            # Whoever interrupts this leaves an answer behind that would be taken for the next one's.
            self._parents.popitem()
            parent.kill()
            raise
        stdout, stderr = (output.read_text(errors="replace") for output in outputs)
        return subprocess.CompletedProcess([str(python), str(script)], status, stdout, stderr)

    def start(self, python: Path, script: Path, *arguments: str, environ: Mapping[str, str], folder: Path) -> ForkedJob:
        """Start ``script``, beside which others can be started; it ends, at the latest, with its parent.

        Args:
            environ: All of its environment.
            folder: Its working directory.
        """
        parent = self._parent(python, environ)
        case = {"script": str(script), "arguments": arguments, "folder": str(folder), "environ": dict(environ)}
        return ForkedJob(lambda pipes: parent.send({**case, **pipes}), IMPORT_TIMEOUT_S)

    def _parent(self, python: Path, environ: Mapping[str, str]) -> _Parent:
        # The loader reads the library path when a process starts.
        key = (str(python), environ.get("LD_LIBRARY_PATH", ""), environ.get("LD_PRELOAD", ""))
        parent = self._parents.pop(key, None)
        if parent is None:
            while len(self._parents) >= MOST_PARENTS:
                self._parents.pop(next(iter(self._parents))).close()
            self._started += 1
            parent = _Parent(str(python), self._framework, self._folder / f"parent-{self._started}", environ)
        self._parents[key] = parent
        return parent

    def close(self) -> None:
        """End the parents; their children have ended."""
        while self._parents:
            self._parents.popitem()[1].close()


class _Parent:
    def __init__(self, python: str, framework: str, folder: Path, environ: Mapping[str, str]) -> None:
        folder.mkdir()
        # Not the environment of the first script, whose rank it would seem to have to those that look into /proc.
        own = {name: value for name, value in os.environ.items() if not name.startswith(STEERING)}
        own.update(AUTOGPU="0", TF_CPP_MIN_LOG_LEVEL="3", HOME=str(folder))
        own.update({name: environ[name] for name in ("LD_LIBRARY_PATH", "LD_PRELOAD") if name in environ})
        self._log = folder / "log"
        self._is_ready = False
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [python, str(PARENT), framework],
                env=own,
                cwd=str(folder),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                universal_newlines=True,
            )

    def send(self, case: Mapping[str, Any]) -> None:
        """Have it fork a child."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(case) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            # It has ended; why, is said where its answer is missing.
            pass

    def exit_status(self, case: Mapping[str, Any]) -> int:
        """Of a child, as :mod:`subprocess` gives it."""
        process = self._process
        assert process.stdout is not None
        self.send(case)
        # It kills a child that is late; only a parent that is gone does not answer.
        timeout_s = case["timeout_s"] + 30 + (0 if self._is_ready else IMPORT_TIMEOUT_S)
        # Line by line and never two at once, so that nothing waits in the buffer while select looks at the pipe.
        ready, _, _ = select.select([process.stdout], [], [], timeout_s)
        line = process.stdout.readline() if ready else ""
        if not line:
            raise RuntimeError(f"the process that imports the framework has ended or hangs:\n{self._log.read_text()}")
        self._is_ready = True
        return int(line)

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def kill(self) -> None:
        """End it and the child that it has."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            try:
                stream.close()
            except BrokenPipeError:
                pass
