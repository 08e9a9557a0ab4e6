"""Simulated machines for unmodified scripts of PyTorch and JAX, and the results of these scripts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence

from tests.gpusim import Call, Gpu, Server
from tests.gpusim.build import build
from tests.support.driver_grants import in_one_line
from tests.support.forkserver import STEERING, ForkedJob, Forks
from tests.support.live_jobs import leases

MIB, GIB = 1 << 20, 1 << 30
CONTEXT = 256 * MIB

# Another user's process is busy on GPU 0. CUDA numbers equal GPUs in PCI order. autogpu takes the idlest GPU first, and
# among equals the highest index: 3, 2, 1, 0.
BUSY = Gpu(processes={5004242: "9GiB"}, utilization=97)
IDLE = (Gpu(), Gpu(), Gpu(), Gpu())
FOUR = (BUSY, *IDLE[1:])
MACHINES = {"four-gpus": FOUR, "one-gpu": IDLE[:1], "no-gpu": ()}

# Time limit of one script, which may have to share the processors with other tests.
TIMEOUT_S = 240


class Installed(NamedTuple):
    """An environment with a framework. Scripts run as forks of ``forks``, or as fresh processes without it."""

    python: Path
    forks: Forks | None = None


@dataclass
class Ran:
    """The result of a script.

    Attributes:
        exit_status: The exit status as in :mod:`subprocess`: negative for a signal.
        calls: Driver calls of the script and its children, oldest first.
        leased: UUIDs in the script's lease at its end; ``None`` if it had no lease or was not forked.
    """

    exit_status: int
    stdout: str
    stderr: str
    calls: list[Call]
    leased: list[str] | None = None

    @property
    def said(self) -> list[str]:
        """Return autogpu's lines on stderr."""
        return [line for line in self.stderr.splitlines() if line.startswith("autogpu: ")]

    @property
    def error(self) -> str:
        """Return the signal that ended the script, or the last error on stderr; ``""`` if the script succeeded."""
        if self.exit_status == 0:
            return ""
        if self.exit_status < 0:
            return f"ended by {signal.Signals(-self.exit_status).name}"
        lines = [line for line in self.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.partition(":")[0].endswith(("Error", "Exception", "Exit"))]
        return (errors or lines or ["nothing on stderr"])[-1][:300]

    @property
    def contexts(self) -> list[int]:
        """Return the GPUs with a context, in PCI order."""
        return sorted({call.gpu for call in self.calls if call.call == "context" and call.gpu is not None})

    @property
    def allocated(self) -> dict[int, int]:
        """Return the sum of all granted allocations in bytes, keyed by GPU; freed memory counts as well."""
        granted: Counter[int] = Counter()
        for call in self.calls:
            if call.call == "allocate" and call.gpu is not None:
                granted[call.gpu] += call.bytes or 0
        return dict(granted)

    def peak_bytes(self, gpu: int) -> int:
        now = peak = 0
        for call in self.calls:
            if call.gpu == gpu and call.call in ("allocate", "free"):
                now += (call.bytes or 0) * (1 if call.call == "allocate" else -1)
                peak = max(peak, now)
        return peak

    @property
    def granted(self) -> str:
        """Return contexts and peak allocations in words: ``GPU 3 < 1 GiB, contexts on 0, 1`` or ``no GPU``."""
        return in_one_line({gpu: _in_words(self.peak_bytes(gpu)) for gpu in self.contexts})


def _in_words(size: int) -> str:
    if not size:
        return "-"
    return f"{size / GIB:.1f} GiB" if size >= GIB else "< 1 GiB"


def run(
    command: Sequence[str], server: Server, *, environ: Mapping[str, str], folder: Path, forks: Forks | None = None
) -> Ran:
    """Run a script in ``folder`` to its end. After ``TIMEOUT_S``, kill it and its children.

    Args:
        command: Python, its options, and the script.
        forks: Runs the script as a fork. Without it, the script is a fresh process.
    """
    before = len(server.calls())
    lease = folder / "lease"
    lease.unlink(missing_ok=True)
    if forks:
        python, file = map(Path, command)
        done = forks.run(python, file, environ=environ, folder=folder, timeout_s=TIMEOUT_S, lease_file=lease)
    else:
        done = _fresh(command, environ, folder)
    calls = server.calls()[before:]
    _await_end({call.pid for call in calls})
    leased = json.loads(lease.read_text()) if lease.exists() else None
    return Ran(done.returncode, done.stdout, done.stderr, calls, leased)


def _fresh(command: Sequence[str], environ: Mapping[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    outputs = [folder / name for name in ("stdout", "stderr")]
    # Use files instead of pipes: a child of a killed script could keep a pipe open.
    with outputs[0].open("w") as stdout, outputs[1].open("w") as stderr:
        child = subprocess.Popen(
            command,
            env=environ,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        try:
            status = child.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            status = child.wait()
    texts = [output.read_text(errors="replace") for output in outputs]
    return subprocess.CompletedProcess(command, status, *texts)


def _await_end(pids: set[int]) -> None:
    """Wait for all processes. Ranks may outlive their launcher, and the next script would find their contexts."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while any(map(_is_running, pids)) and time.monotonic() < deadline_s:
        time.sleep(0.02)


def _is_running(pid: int) -> bool:
    try:
        stat = Path("/proc", str(pid), "stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


class Machine:
    """A machine with a home and a lease folder. It runs scripts of one environment.

    Args:
        python: Interpreter of the environment. Make the environment first: the server is built for its CUDA functions.
        folder: Folder to create.
        gpus: GPUs of the machine. Without any, there is no driver.
        forks: Runs scripts as forks, unless a test requests a fresh process. Without it, every process is fresh.
        device_nodes: True if the driver's files in ``/dev`` exist. JAX requires them.
        environ: Variables for every script.
    """

    def __init__(
        self,
        python: Path,
        folder: Path,
        gpus: Sequence[Gpu],
        forks: Forks | None = None,
        device_nodes: bool = True,
        **environ: str,
    ) -> None:
        self._forks = forks
        self.project = folder / "project"
        self.leases = folder / "leases"
        server = folder / "server"
        for made in (self.project, self.leases, server, folder / "home"):
            made.mkdir(parents=True)
        self._python = python
        self._started = 0
        self.server = Server(gpus, folder=server, context=CONTEXT, device_nodes=device_nodes and bool(gpus)).__enter__()
        mine = {name: value for name, value in os.environ.items() if not name.startswith(STEERING)}
        self._environ = {
            **mine,
            **(self.server.environ if gpus else {"LD_LIBRARY_PATH": str(_without_driver(folder))}),
            "HOME": str(folder / "home"),
            "XDG_CONFIG_HOME": str(folder / "home" / ".config"),
            "XDG_CACHE_HOME": str(folder / "home" / ".cache"),
            "XDG_STATE_HOME": str(folder / "home" / ".local" / "state"),
            "AUTOGPU_LEASE_DIR": str(self.leases),
            # Otherwise each process starts as many threads as the machine has processors.
            "OMP_NUM_THREADS": "1",
            **environ,
        }

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *error: object) -> None:
        self.server.__exit__(*error)

    def run(self, script: str, *, launcher: Sequence[str] = (), fresh: bool = False, **environ: str) -> Ran:
        """Run a script as ``train.py`` to its end. ``launcher`` has Python arguments to put before the script."""
        return run(
            self._command(script, launcher),
            self.server,
            environ={**self._environ, **environ},
            folder=self.project,
            forks=None if fresh or launcher else self._forks,
        )

    def start(
        self,
        script: str,
        *,
        arguments: Sequence[str] = (),
        fresh: bool = False,
        name: str = "",
        of: Installed | None = None,
        **environ: str,
    ) -> Running:
        """Start a script and return while it runs. It is killed when the ``with`` ends.

        Args:
            arguments: Arguments of the script.
            fresh: True for a process that imports the framework itself.
            name: File name of the script; by default a new name for each start.
            of: Environment to use in place of the machine's own.
            environ: Variables in addition to the machine's.
        """
        python, forks = of or (self._python, self._forks)
        everything = {**self._environ, **environ}
        self._started += 1
        command = [*self._command(script, (), name or f"job{self._started}.py", python), *arguments]
        if forks and not fresh:
            file, environ = Path(command[1]), self.server.environ_of_child(everything)
            forked = forks.start(python, file, *arguments, environ=environ, folder=self.project)
            return Running(self.server, self.server.adopt(forked))
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return Running(self.server, self.server.popen(command, environ=everything, cwd=str(self.project), **pipes))

    def claims(self) -> dict[int, list[int]]:
        """Return the GPU indices of each job in ``autogpu status``, keyed by pid."""
        command = [str(self._python), "-m", "autogpu", "status", "--json"]
        shown = subprocess.run(command, env=self._environ, capture_output=True, check=True, timeout=60).stdout
        found: dict[int, list[int]] = {}
        for gpu in json.loads(shown)["gpus"]:
            for job in gpu["jobs"]:
                found.setdefault(job["pid"], []).append(gpu["index"])
        return found

    def status(self) -> str:
        """Return the output of ``autogpu status`` on this machine."""
        command = [str(self._python), "-m", "autogpu", "status"]
        return subprocess.run(command, env=self._environ, capture_output=True, text=True, check=True, timeout=60).stdout

    def claimed_bytes(self) -> dict[int, dict[int, int]]:
        """Return the bytes claimed by each live lease, keyed by pid and then by GPU index."""
        index = {gpu.uuid: position for position, gpu in enumerate(self.server.gpus)}
        return {fields["pid"]: {index[u]: size for u, size in fields["gpus"].items()} for fields in self.leased()}

    def leased(self) -> list[Mapping[str, Any]]:
        return list(leases(self.leases).values())

    def _command(
        self, script: str, launcher: Sequence[str], name: str = "train.py", python: Path | None = None
    ) -> list[str]:
        file = self.project / name
        file.write_text(script)
        return [str(python or self._python), *launcher, str(file)]


class Running:
    """A script while it runs on a machine."""

    def __init__(self, server: Server, process: subprocess.Popen[Any] | ForkedJob) -> None:
        self._server = server
        self._process = process
        self.pid = process.pid

    def line(self) -> str:
        """Return the next line of stdout; ``""`` if the script has ended. Only the test's timeout limits the wait."""
        assert self._process.stdout is not None
        return str(self._process.stdout.readline()).strip()

    def go_on(self, line: str = "") -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def heard(self, words: str) -> str:
        """Return autogpu's next line on stderr that contains ``words``."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if line.startswith("autogpu: ") and words in line:
                return str(line)
        raise AssertionError(f"it ended without {words!r}")

    def kill(self) -> None:
        """Send SIGKILL to the script and wait for its end."""
        self._process.kill()
        self._process.wait(TIMEOUT_S)

    def end(self, timeout_s: int = 120) -> Ran:
        """Close stdin, wait until the script ends by itself, and return its result."""
        stdout, stderr = self._process.communicate(timeout=timeout_s)
        return Ran(self._process.returncode, stdout, stderr, self._server.calls(pid=self.pid))

    @property
    def contexts(self) -> list[int]:
        """Return the GPUs on which the script has a context, in PCI order."""
        return sorted(self._server.contexts().get(self.pid, []))


def all_at_once(*jobs: Running) -> list[str]:
    """Wait for the imports of all jobs, let the jobs take GPUs at the same time, and return their next lines."""
    assert [job.line() for job in jobs] == ["imported"] * len(jobs)
    for job in jobs:
        job.go_on()
    return [job.line() for job in jobs]


def _without_driver(folder: Path) -> Path:
    """Return a new folder with all simulated libraries except the driver's."""
    made = folder / "libraries"
    made.mkdir()
    for library in build().iterdir():
        if library.name not in ("libcuda.so.1", "libnvidia-ml.so.1"):
            (made / library.name).symlink_to(library)
    return made
