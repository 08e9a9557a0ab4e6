"""Starts the jobs of ``contention.py`` on a simulated server, reads what they print, has them observed, ends them."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import selectors
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

from tests.gpusim import Server
from tests.gpusim.build import build

ROOT = Path(__file__).resolve().parent.parent

GIB = 1 << 30
MIB = 1 << 20
GPU_BYTES = 24 * GIB
# A job that is promised a whole GPU takes this much in the end, so two of them don't fit.
WHOLE_USE = 0.6
# What a job says when something went wrong that is no outcome of a choice.
UNEXPECTED = ("Traceback", "internal error", "without regard", "timed out")
# No run takes this long; one that does is ended, and says so.
DEADLINE_S = 90.0


class Place(NamedTuple):
    """Where processes of any user find the code: a copy, so that an edit in the checkout changes no run."""

    folder: Path
    python: str
    libraries: str
    users: tuple[int | None, ...]


@dataclass
class Job:
    """A process of ``contention_job.py`` and what it has told so far."""

    process: subprocess.Popen
    errors: Path
    said: dict[str, dict] = field(default_factory=dict)
    killed_s: float | None = None
    rest: bytes = b""
    is_done: bool = False

    @property
    def gpus(self) -> list[str]:
        """UUIDs of those it decided for; none as long as it has not."""
        return self.said.get("decided", {}).get("gpus", [])

    @property
    def took_s(self) -> float:
        """From the start signal to its decision."""
        return self.said["decided"]["decided_s"] - self.said["decided"]["begun_s"]

    @property
    def end_s(self) -> float | None:
        """When its end began: from here on it is not counted as using a GPU."""
        ending = self.said.get("ending", {}).get("time_s")
        ends = [each for each in (ending, self.killed_s) if each is not None]
        return min(ends) if ends else None


class Gate:
    """A pipe that lets all its readers through in the same instant, when its last writer closes it."""

    def __enter__(self) -> Gate:
        self.reader, self._writer = os.pipe()
        return self

    def open(self) -> None:
        """Let them through; the second time does nothing."""
        if self._writer >= 0:
            os.close(self._writer)
            self._writer = -1

    def __exit__(self, *exception: object) -> None:
        self.open()
        os.close(self.reader)


def a_place(folder: Path, python: str, users: tuple[int | None, ...] = (None,)) -> Place:
    code = folder / "code"
    if not code.exists():
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "autogpu", code / "autogpu", ignore=ignored)
        # Beside it, where autogpu finds its one dependency whatever Python runs the job.
        shutil.copy(str(importlib.util.find_spec("pynvml").origin), code)
        shutil.copy(ROOT / "benchmarks" / "contention_job.py", code)
        shutil.copytree(build(), folder / "libraries", symlinks=True)
        # Whatever the umask with which the checkout was made.
        for path in (code, *code.rglob("*"), folder / "libraries", *(folder / "libraries").iterdir()):
            path.chmod(0o755)
    # Now, and not in the first jobs; a user who may not write there never could.
    with contextlib.suppress(OSError):
        subprocess.run([python, "-m", "compileall", "-q", str(code)], timeout=120, check=False)
    return Place(folder, python, str(folder / "libraries"), users)


def an_order(
    contender: str, need_bytes: int | None, hold_s: float | None, seed: int, folder: Path, gates: tuple[Gate, Gate]
) -> dict[str, Any]:
    """What ``contention_job.py`` is told; the gates are those of its start and of its end."""
    return {
        "contender": contender,
        "need_bytes": need_bytes,
        "use_bytes": int(GPU_BYTES * WHOLE_USE) if need_bytes is None else need_bytes,
        "total_bytes": GPU_BYTES,
        "go": gates[0].reader,
        "end": gates[1].reader,
        "hold_s": hold_s,
        "seed": seed,
        "folder": str(folder),
    }


def policy(need_bytes: int | None, busy: str, wait: str, **more: str) -> dict[str, str]:
    """The variables by which a user says it."""
    environ = {"AUTOGPU_BUSY": busy, "AUTOGPU_WAIT": wait, **more}
    return environ if need_bytes is None else {**environ, "AUTOGPU_NEED": f"{need_bytes // MIB}MiB"}


def start(
    place: Place,
    server: Server,
    folder: Path,
    leases: Path,
    order: Mapping[str, Any],
    environ: Mapping[str, str],
    gates: Sequence[Gate],
    uid: int | None = None,
) -> Job:
    errors = folder / f"{order['seed']}.{time.monotonic_ns()}.err"
    surroundings = {
        "AUTOGPU_LEASE_DIR": str(leases),
        "AUTOGPU_POLICY": os.devnull,
        "HOME": str(folder / "no-home"),
        "LD_LIBRARY_PATH": place.libraries,
        "PYTHONPATH": str(place.folder / "code"),
        **environ,
    }
    user = {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}
    with errors.open("wb") as stderr:
        process = server.popen(
            [place.python, str(place.folder / "code" / "contention_job.py"), json.dumps(order)],
            environ=surroundings,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=False,
            cwd=folder,
            pass_fds=[gate.reader for gate in gates],
            # Ctrl-C ends the benchmark, which then ends its jobs.
            start_new_session=True,
            **user,
        )
    return Job(process, errors)


def listen(jobs: Sequence[Job], event: str, and_meanwhile: Any = lambda jobs: None) -> None:
    """Hear what jobs tell until each has told ``event`` or has ended.

    Raises:
        SystemExit: It takes too long.
    """
    deadline_s = time.monotonic() + DEADLINE_S
    with selectors.DefaultSelector() as selector:
        for job in jobs:
            if not job.is_done and event not in job.said:
                selector.register(job.process.stdout, selectors.EVENT_READ, job)
        while selector.get_map():
            if time.monotonic() > deadline_s:
                silent = [key.data.process.pid for key in selector.get_map().values()]
                raise SystemExit(f"contention.py: no '{event}' within {DEADLINE_S:g} s from pids {silent}")
            for key, _ in selector.select(0.02):
                hear(key.data)
                if key.data.is_done or event in key.data.said:
                    selector.unregister(key.fileobj)
            and_meanwhile(jobs)


def hear(job: Job) -> None:
    part = os.read(job.process.stdout.fileno(), 1 << 16)
    job.is_done = not part
    *lines, job.rest = (job.rest + part).split(b"\n")
    for line in lines:
        told = json.loads(line)
        job.said[told.pop("event")] = told


def end_now(job: Job) -> None:
    # Before the signal: nothing that the killed job still does counts, and nothing that comes later is blamed on it.
    job.killed_s = time.monotonic()
    job.process.kill()


def finish(jobs: Sequence[Job]) -> None:
    listen(jobs, "what no job tells, so that all of them are heard to their end")
    for job in jobs:
        job.process.wait(DEADLINE_S)


@contextlib.contextmanager
def jobs_reaped() -> Iterator[list[Job]]:
    """Let no job live on, whatever ends the run."""
    jobs: list[Job] = []
    try:
        yield jobs
    finally:
        for job in jobs:
            job.process.kill()
        for job in jobs:
            job.process.wait()
            job.process.stdout.close()


@contextlib.contextmanager
def observed(server: Server, folder: Path, leases: Path, promise_bytes: int) -> Iterator[dict[str, Any]]:
    """Run the observer meanwhile; what it saw is in the dictionary afterwards."""
    order = {
        "log": str(folder / "gpusim.log"),
        "leases": str(leases),
        "totals": {gpu.uuid: gpu.memory_bytes for gpu in server.gpus},
        "promise_bytes": promise_bytes,
    }
    command = [sys.executable, "-S", str(ROOT / "benchmarks" / "observer.py"), json.dumps(order)]
    pipe = subprocess.PIPE
    seen: dict[str, Any] = {}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True) as observer:
        try:
            observer.stdout.readline()
            yield seen
            printed, _ = observer.communicate(timeout=30)
            seen.update(json.loads(printed))
        finally:
            observer.kill()


def lease_folder(folder: Path) -> Path:
    leases = folder / "leases"
    leases.mkdir()
    leases.chmod(0o1777)
    return leases


def percentile(values: Sequence[float], percent: int) -> float:
    """The smallest value that ``percent`` of all do not exceed."""
    ranked = sorted(values)
    return ranked[max(0, -(-len(ranked) * percent // 100) - 1)]


def ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.1f} ms"


def say(message: str, *, lasting: bool = False) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{message}", end="\n" if lasting else "", file=sys.stderr, flush=True)
    else:
        print(message, file=sys.stderr, flush=True)
