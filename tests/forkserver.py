"""Scripts on a machine, as processes of their own that need not import TensorFlow each: an import takes seconds of
processor time, a fork after it milliseconds.

One parent for each machine, environment and policy imports TensorFlow through the installed hook, and forks a child for
each script. ``import tensorflow`` touches no CUDA, so the child is as a fresh process is after its import. What counts
at the import itself (``AUTOGPU_*``, a ``CUDA_VISIBLE_DEVICES`` of the shell, or one that a script sets before it
imports) is the same for all children of a parent; scripts that need another one run as fresh processes.

The parent is this file, run by the Python of the environment under test: nothing but the standard library of 3.7.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import runpy
import select
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.gpusim import Call, Server

# Of the import in the parent, when other tests have the processors.
IMPORT_TIMEOUT_S = 300


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
        """What autogpu said."""
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
        self, python: Path, folder: Path, server: Server | None = None, environ: Mapping[str, str] | None = None
    ) -> None:
        self.server = server
        self._python = str(python)
        self._project = folder / "project"
        self._leases = folder / "leases"
        for made in (folder / "home", self._project, self._leases):
            made.mkdir(parents=True)
        self._leases.chmod(0o1777)
        steering = ("AUTOGPU", "CUDA_", "GPUSIM", "TF_", "SLURM_", "PYTHON")
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith(steering)},
            "HOME": str(folder / "home"),
            "XDG_CONFIG_HOME": str(folder / "home" / ".config"),
            "XDG_CACHE_HOME": str(folder / "home" / ".cache"),
            "AUTOGPU_LEASE_DIR": str(self._leases),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            **(server.environ if server else {}),
            **(environ or {}),
        }
        self._parent: subprocess.Popen[str] | None = None

    def forked(self, script: Path, *, environ: Mapping[str, str] | None = None, timeout_s: int = 120) -> Ended:
        """Run ``script`` to its end in a child of the parent, which is started for the first one."""
        parent = self._parent or self._start()
        case = {
            "script": str(self._placed(script)),
            "folder": str(self._project),
            "environ": dict(environ or {}),
            "timeout_s": timeout_s,
        }
        before = self._call_count()
        assert parent.stdin is not None
        try:
            parent.stdin.write(json.dumps(case) + "\n")
            parent.stdin.flush()
        except BrokenPipeError:
            # It has ended; why, is said where its answer is missing.
            pass
        # The parent kills a child that is late; only a parent that is gone does not answer.
        status = self._answer(parent, timeout_s + 30)["exit_status"]
        leased = self._project / "leased"
        return self._ended(status, before, json.loads(leased.read_text()) if leased.exists() else None)

    def fresh(self, script: Path, *, environ: Mapping[str, str] | None = None, timeout_s: int = 120) -> Ended:
        """Run ``script`` to its end as a process that imports TensorFlow itself."""
        before = self._call_count()
        outputs = [(self._project / name).open("w") for name in ("stdout", "stderr")]
        try:
            command = [self._python, str(self._placed(script))]
            own = {**self.environ, **(environ or {})}
            child = subprocess.Popen(
                command, env=own, cwd=str(self._project), stdin=subprocess.DEVNULL, stdout=outputs[0], stderr=outputs[1]
            )
            try:
                status = child.wait(timeout_s)
            except subprocess.TimeoutExpired:
                child.kill()
                status = child.wait()
        finally:
            for output in outputs:
                output.close()
        return self._ended(status, before)

    def close(self) -> None:
        """End the parent; its children have ended."""
        parent, self._parent = self._parent, None
        if parent is None:
            return
        assert parent.stdin is not None and parent.stdout is not None
        try:
            parent.stdin.close()
        except BrokenPipeError:
            pass
        try:
            parent.wait(30)
        except subprocess.TimeoutExpired:
            parent.kill()
            parent.wait()
        parent.stdout.close()

    def _start(self) -> subprocess.Popen[str]:
        with (self._project.parent / "parent.log").open("w") as log:
            self._parent = subprocess.Popen(
                [self._python, __file__],
                env=self.environ,
                cwd=str(self._project),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                universal_newlines=True,
            )
        self._is_ready = False
        return self._parent

    def _answer(self, parent: subprocess.Popen[str], timeout_s: float) -> dict[str, Any]:
        assert parent.stdout is not None
        if not self._is_ready:
            timeout_s += IMPORT_TIMEOUT_S
            self._is_ready = True
        # Line by line and never two at once, so that nothing waits in the buffer while select looks at the pipe.
        ready, _, _ = select.select([parent.stdout], [], [], timeout_s)
        line = parent.stdout.readline() if ready else ""
        if not line:
            parent.kill()
            parent.wait()
            log = (self._project.parent / "parent.log").read_text()
            raise RuntimeError(f"the process that imports TensorFlow for the scripts has ended or hangs:\n{log}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _placed(self, script: Path) -> Path:
        leased = self._project / "leased"
        if leased.exists():
            leased.unlink()
        # Away from the repository, whose files could be found as a project's policy.
        return Path(shutil.copy(str(script), str(self._project / script.name)))

    def _call_count(self) -> int:
        return len(self.server.calls()) if self.server else 0

    def _ended(self, status: int, before: int, leased: list[str] | None = None) -> Ended:
        calls = self.server.calls()[before:] if self.server else []
        stdout, stderr = ((self._project / name).read_text(errors="replace") for name in ("stdout", "stderr"))
        return Ended(status, stdout, stderr, calls, leased)


def serve() -> dict[str, Any]:
    """Fork a child for each line of stdin; returns in the child, with its case. Ends with its input."""
    # A second descriptor: what TensorFlow prints while it is imported must not look like an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # As with `python`, and not with this file's name: a policy is looked for beside the script.
    sys.argv, sys.path[0] = [""], ""
    import tensorflow  # noqa: F401

    # A collection in a child would copy what it looks at.
    gc.freeze()
    for line in sys.stdin:
        case: dict[str, Any] = json.loads(line)
        pid = os.fork()
        if pid == 0:
            answers.close()
            return case

        def kill(*_: Any, child: int = pid) -> None:
            # Its whole session: a script may have started others.
            try:
                os.killpg(child, signal.SIGKILL)
            except ProcessLookupError:
                pass

        signal.signal(signal.SIGALRM, kill)
        signal.alarm(case["timeout_s"])
        _, status = os.waitpid(pid, 0)
        signal.alarm(0)
        kill()
        exit_status = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        answers.write(json.dumps({"exit_status": exit_status}) + "\n")
        answers.flush()
    sys.exit(0)


def become(case: Mapping[str, Any]) -> int:
    """Be the process that ``python script`` would be after its import; returns its exit status."""
    os.setsid()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    sys.stdin = open(os.devnull)  # noqa: PTH123, SIM115
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        path = os.path.join(case["folder"], name)  # noqa: PTH118
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
    os.dup2(sys.stdin.fileno(), 0)
    os.environ.update(case["environ"])
    os.chdir(case["folder"])
    sys.argv[:] = [case["script"]]
    sys.path[0] = case["folder"]
    try:
        runpy.run_path(case["script"], run_name="__main__")
    except SystemExit as error:
        if not isinstance(error.code, str):
            return int(error.code or 0)
        sys.stderr.write(error.code + "\n")
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def tell_lease() -> None:
    """Write the UUIDs in this process's lease to the file ``leased``, if it has one."""
    for file in Path(os.environ["AUTOGPU_LEASE_DIR"]).glob("job.*"):
        fields = json.loads(file.read_text())
        if fields["pid"] == os.getpid():
            Path("leased").write_text(json.dumps(sorted(fields["gpus"])))


def end(exit_status: int) -> None:
    """End as an interpreter does, but for taking every module apart.

    That would first copy the whole memory that a child shares with its parent: it takes several times as long as
    what most scripts do.
    """
    tell_lease()
    getattr(threading, "_shutdown")()  # noqa: B009
    getattr(atexit, "_run_exitfuncs")()  # noqa: B009
    sys.stdout.flush()
    sys.stderr.flush()
    # What TensorFlow's own code has printed.
    ctypes.CDLL(None).fflush(None)
    os._exit(exit_status)


if __name__ == "__main__":
    end(become(serve()))
