"""Forks of processes that have imported a framework: an import takes seconds of processor time, a fork a tenth of it.

One parent for each environment imports the framework with autogpu switched off, and forks a child for each script.

- The child has its own environment variables. It loads the installed hook again, as ``site`` does at a start.
- The child has dropped the framework's top-level module, so the script's own import goes through the hook. It runs the
  body of TensorFlow's top-level package between autogpu's two steps. The thousands of submodules stay imported.
- The body of any other framework is not run again, because it can't be run twice.
- The import in the parent doesn't use CUDA or the driver, so a child can be on any server.

A fork differs from a fresh process in four ways. The import takes no time. The framework has already read the
environment variables that it reads at import. A script must have ``import tensorflow`` before it uses a submodule.
Modules are not torn down at the end. Tests compare forks with fresh processes.

The parent runs ``forked.py`` with the Python of the environment under test.
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

# Time limit of the import in the parent, which may have to share the processors with other tests.
IMPORT_TIMEOUT_S = 300

# Prefixes of variables that configure autogpu, CUDA, a framework or Python. A new process must not inherit them.
STEERING = ("AUTOGPU", "CUDA_", "GPUSIM", "TF_", "JAX_", "XLA_", "PYTORCH_", "SLURM_", "PYTHON")

# A parent uses about 400 MB. One version's tests need three: without autogpu, with it, and with it without a driver.
MOST_PARENTS = 3

PARENT = Path(__file__).with_name("forked.py")


class Forks:
    """Runs scripts as forks of parents that have imported a framework. Each environment has its own parent.

    Args:
        folder: Existing folder for logs and output.
        framework: The framework's top-level module.
    """

    def __init__(self, folder: Path, framework: str = "tensorflow") -> None:
        self._folder = folder
        self._framework = framework
        self._started = 0
        # Ordered by last use, the most recently used last.
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
        """Run ``script`` to its end. After ``timeout_s``, kill it and its children; the exit status is ``-SIGKILL``.

        Args:
            environ: All environment variables of the script.
            folder: Working directory of the script.
            lease_file: File for the UUIDs in the script's lease, written at the end of the script if it has a lease.
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
        """Start ``script`` and return while it runs. It is killed if its parent ends.

        Args:
            environ: All environment variables of the script.
            folder: Working directory of the script.
        """
        return self._forked(python, environ, script=str(script), arguments=arguments, folder=str(folder))

    def _forked(self, python: Path, environ: Mapping[str, str], **case: Any) -> ForkedJob:
        return ForkedJob(self._parent(python, environ), {**case, "environ": dict(environ)})

    def _parent(self, python: Path, environ: Mapping[str, str]) -> _Parent:
        # The dynamic loader reads these variables only when a process starts, so each value needs its own parent.
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
        """End the parents. Their children must have ended before."""
        while self._parents:
            self._parents.popitem()[1].close()


class ForkedJob:
    """A running script with the interface of :class:`subprocess.Popen`.

    Args:
        parent: The process to fork.
        case: The request to ``forked.py``. By default stdin, stdout and stderr of the script are pipes.

    Attributes:
        pid: The pid of the script, not that of its parent.
        returncode: ``None`` until :meth:`wait` or :meth:`poll` has seen the end; negative for a signal.
    """

    def __init__(self, parent: _Parent, case: Mapping[str, Any]) -> None:
        pipes = [os.pipe() for _ in range(4)]
        (its_stdin, stdin), *rest = pipes
        ours, its = [stdin, *(pipe[0] for pipe in rest)], [its_stdin, *(pipe[1] for pipe in rest)]
        self.stdin: IO[str] = os.fdopen(stdin, "w")
        self.stdout, self.stderr, self._status = (os.fdopen(end, errors="replace") for end in ours[1:])
        self.returncode: int | None = None
        # The child opens these paths. Each opening makes a separate descriptor, so ours can be closed below.
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
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the script and return its exit status.

        Raises:
            subprocess.TimeoutExpired: The script still runs after ``timeout`` seconds.
        """
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(["forked job"], timeout or 0)
            # There is no status line if the parent was killed, which kills the child as well.
            self.returncode = int(self._status.readline() or -signal.SIGKILL)
            self._status.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Close stdin, and return all of stdout and stderr when the script has ended."""
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
        """Kill the script and the processes that it has started, and close the pipes."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()
        for stream in (self.stdin, self.stdout, self.stderr):
            stream.close()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended, but its status line has not arrived yet
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Parent:
    def __init__(self, python: str, framework: str, folder: Path, environ: Mapping[str, str]) -> None:
        folder.mkdir()
        # The parent does not get the first script's environment: code that reads /proc would take the parent for a rank
        # of that script's job.
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
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(case) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            # The parent has ended. ForkedJob raises an error with the parent's log when it gets no answer.
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
