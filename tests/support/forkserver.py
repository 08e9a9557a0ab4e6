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
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any, Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.gpusim import Call, Server

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
        # The loader reads the library path when a process starts.
        key = (str(python), environ.get("LD_LIBRARY_PATH", ""), environ.get("LD_PRELOAD", ""))
        parent = self._parents.pop(key, None)
        if parent is None:
            while len(self._parents) >= MOST_PARENTS:
                self._parents.pop(next(iter(self._parents))).close()
            self._started += 1
            folder_of_parent = self._folder / f"parent-{self._started}"
            parent = _Parent(str(python), self._framework, folder_of_parent, environ)
        outputs = [self._folder / name for name in ("stdout", "stderr")]
        case = {
            "script": str(script),
            "folder": str(folder),
            "environ": dict(environ),
            "timeout_s": timeout_s,
            "outputs": [str(output) for output in outputs],
            "lease_file": str(lease_file) if lease_file else None,
        }
        try:
            status = parent.exit_status(case)
        except BaseException:
            # Whoever interrupts this leaves an answer behind that would be taken for the next one's.
            parent.kill()
            raise
        self._parents[key] = parent
        stdout, stderr = (output.read_text(errors="replace") for output in outputs)
        return subprocess.CompletedProcess([str(python), str(script)], status, stdout, stderr)

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

    def exit_status(self, case: Mapping[str, Any]) -> int:
        """Of a child, as :mod:`subprocess` gives it."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(case) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            # It has ended; why, is said where its answer is missing.
            pass
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


class Ended:
    """A script that has ended.

    Attributes:
        exit_status: As :mod:`subprocess` gives it; negative for a signal.
        calls: What it and its children asked of the driver, oldest first.
        leased: The UUIDs in its lease when it had come to its end; ``None`` where it had none, or was not forked.
    """

    def __init__(
        self, exit_status: int, stdout: str, stderr: str, calls: list[Call], leased: list[str] | None = None
    ) -> None:
        self.exit_status, self.stdout, self.stderr, self.calls = exit_status, stdout, stderr, calls
        self.leased = leased

    @property
    def said(self) -> list[str]:
        """What autogpu printed."""
        return [line for line in self.stderr.splitlines() if line.startswith("autogpu: ")]

    @property
    def error(self) -> str:
        """The last line of what it said on stderr that is not TensorFlow's log, where it failed."""
        if self.exit_status == 0:
            return ""
        if self.exit_status < 0:
            return f"ended by {signal.Signals(-self.exit_status).name}"
        lines = [line for line in self.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.partition(":")[0].endswith(("Error", "Exception", "Exit"))]
        return (errors or lines or ["nothing on stderr"])[-1][:300]


class Host:
    """A machine with one environment's Python and one policy, on which scripts run one after the other.

    Args:
        python: The environment's.
        folder: For the home, the leases and the project folder; made here.
        server: ``None`` for a machine without a driver.
        environ: On top of this process's, without what steers autogpu, CUDA or TensorFlow there.
    """

    def __init__(
        self,
        python: Path,
        folder: Path,
        forks: Forks,
        server: Server | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.server = server
        self._python = python
        self._forks = forks
        self._project = folder / "project"
        self._leases = folder / "leases"
        for made in (folder / "home", self._project, self._leases):
            made.mkdir(parents=True)
        self._leases.chmod(0o1777)
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith(STEERING)},
            "HOME": str(folder / "home"),
            "XDG_CONFIG_HOME": str(folder / "home" / ".config"),
            "XDG_CACHE_HOME": str(folder / "home" / ".cache"),
            "AUTOGPU_LEASE_DIR": str(self._leases),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            **(server.environ if server else {}),
            **(environ or {}),
        }

    def forked(self, script: Path, *, environ: Mapping[str, str] | None = None, timeout_s: int = 120) -> Ended:
        """Run ``script`` to its end as a fork of a process that has imported TensorFlow."""
        before = self._call_count()
        leased = self._project / "leased"
        if leased.exists():
            leased.unlink()
        done = self._forks.run(
            self._python,
            self._placed(script),
            environ={**self.environ, **(environ or {})},
            folder=self._project,
            timeout_s=timeout_s,
            lease_file=leased,
        )
        uuids = json.loads(leased.read_text()) if leased.exists() else None
        return Ended(done.returncode, done.stdout, done.stderr, self._calls(before), uuids)

    def fresh(self, script: Path, *, environ: Mapping[str, str] | None = None, timeout_s: int = 120) -> Ended:
        """Run ``script`` to its end as a process that imports TensorFlow itself."""
        before = self._call_count()
        paths = [self._project / name for name in ("stdout", "stderr")]
        # Files and no pipes: a child of a killed script could keep a pipe open.
        outputs = [path.open("w") for path in paths]
        try:
            child = subprocess.Popen(
                [str(self._python), str(self._placed(script))],
                env={**self.environ, **(environ or {})},
                cwd=str(self._project),
                stdin=subprocess.DEVNULL,
                stdout=outputs[0],
                stderr=outputs[1],
            )
            try:
                status = child.wait(timeout_s)
            except subprocess.TimeoutExpired:
                child.kill()
                status = child.wait()
        finally:
            for output in outputs:
                output.close()
        stdout, stderr = (path.read_text(errors="replace") for path in paths)
        return Ended(status, stdout, stderr, self._calls(before))

    def _placed(self, script: Path) -> Path:
        # Away from the repository, whose files could be found as a project's policy.
        return Path(shutil.copy(str(script), str(self._project / script.name)))

    def _call_count(self) -> int:
        return len(self.server.calls()) if self.server else 0

    def _calls(self, before: int) -> list[Call]:
        return self.server.calls()[before:] if self.server else []
