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
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Mapping

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
        outputs = [self._folder / name for name in ("stdout", "stderr")]
        case = {"input": os.devnull, "outputs": list(map(str, outputs)), "lease_file": lease_file and str(lease_file)}
        job = self._forked(python, environ, script=str(script), arguments=(), folder=str(folder), **case)
        try:
            status = job.wait(timeout_s)
        except subprocess.TimeoutExpired:
            status = -signal.SIGKILL
        finally:
            job.close()
        stdout, stderr = (output.read_text(errors="replace") for output in outputs)
        return subprocess.CompletedProcess([str(python), str(script)], status, stdout, stderr)

    def start(self, python: Path, script: Path, *arguments: str, environ: Mapping[str, str], folder: Path) -> ForkedJob:
        """Start ``script``, beside which others can be started; it ends, at the latest, with its parent.

        Args:
            environ: All of its environment.
            folder: Its working directory.
        """
        return self._forked(python, environ, script=str(script), arguments=arguments, folder=str(folder))

    def _forked(self, python: Path, environ: Mapping[str, str], **case: Any) -> ForkedJob:
        return ForkedJob(self._parent(python, environ), {**case, "environ": dict(environ)})

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


class ForkedJob:
    """One script, beside which others may run; used as :class:`subprocess.Popen` is.

    Args:
        parent: What it is to be a fork of.
        case: What ``forked.py`` is told of it; by default it reads and writes pipes.

    Attributes:
        pid: Its own, not that of the process it is a fork of.
        returncode: ``None`` until its end was seen; negative for a signal.
    """

    def __init__(self, parent: _Parent, case: Mapping[str, Any]) -> None:
        pipes = [os.pipe() for _ in range(4)]
        (its_stdin, stdin), *rest = pipes
        ours, its = [stdin, *(pipe[0] for pipe in rest)], [its_stdin, *(pipe[1] for pipe in rest)]
        self.stdin: IO[str] = os.fdopen(stdin, "w")
        self.stdout, self.stderr, self._status = (os.fdopen(end, errors="replace") for end in ours[1:])
        self.returncode: int | None = None
        # It opens these anew: of a pipe, each opening is an end of its own.
        paths = [f"/proc/{os.getpid()}/fd/{end}" for end in its]
        parent.send({"input": paths[0], "outputs": paths[1:3], "status": paths[3], **case})
        deadline_s = time.monotonic() + IMPORT_TIMEOUT_S
        while not select.select([self._status], [], [], 0.5)[0]:
            if parent.has_ended() or time.monotonic() > deadline_s:
                raise RuntimeError(f"what imports the framework has ended or hangs:\n{parent.log.read_text()}")
        self.pid = int(self._status.readline())
        for end in its:
            os.close(end)

    def poll(self) -> int | None:
        """Its exit status, if it has ended."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, once it has ended.

        Raises:
            subprocess.TimeoutExpired: It has not within ``timeout`` seconds.
        """
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(["forked job"], timeout or 0)
            # No line: the process it is a fork of was killed, and it with that.
            self.returncode = int(self._status.readline() or -signal.SIGKILL)
            self._status.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Close its input, and return what it writes until its end."""
        self.stdin.close()
        texts: dict[IO[str], str] = {}

        def read(stream: IO[str]) -> None:
            texts[stream] = stream.read()

        readers = [threading.Thread(target=read, args=(stream,), daemon=True) for stream in (self.stdout, self.stderr)]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        return texts[self.stdout], texts[self.stderr]

    def close(self) -> None:
        """End it and what it has started, and close what it is read by."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()
        for stream in (self.stdin, self.stdout, self.stderr):
            stream.close()

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it has not ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended, and its line is on the way
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.send_signal(signal.SIGKILL)


class _Parent:
    def __init__(self, python: str, framework: str, folder: Path, environ: Mapping[str, str]) -> None:
        folder.mkdir()
        # Not the environment of the first script, whose rank it would seem to have to those that look into /proc.
        own = {name: value for name, value in os.environ.items() if not name.startswith(STEERING)}
        own.update(AUTOGPU="0", TF_CPP_MIN_LOG_LEVEL="3", HOME=str(folder))
        own.update({name: environ[name] for name in ("LD_LIBRARY_PATH", "LD_PRELOAD") if name in environ})
        self.log = folder / "log"
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [python, str(PARENT), framework],
                env=own,
                cwd=str(folder),
                stdin=subprocess.PIPE,
                stdout=log,
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

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
