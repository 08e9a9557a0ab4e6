"""The process that runs the simulated users' jobs until its standard input is closed.

It runs on the simulated server. It starts the first jobs, prints ``ready``, and then lets jobs come and go.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Iterator, Mapping

from demo.lab.scene import COMING, FAULTY_GPU, ON_FAULTY_GPU, Part, on, scene_for
from tests.gpusim.fleets import FLEETS
from tests.gpusim.server import write_fleet

ROOT = Path(__file__).resolve().parents[2]
JOB = Path(__file__).with_name("job.py")
LONGEST_START_S = 60.0
LONGEST_QUEUE = 3
BETWEEN_JOBS_S = 8.0
LOOK_S = 0.2
PREFIX = len("GPU-")  # UUIDs begin with GPU- or MIG-
# Samples of a GPU whose jobs are idle, such as the notebook: zero as far back as the driver's samples reach.
IDLE_SAMPLES = (0,) * 64


@dataclass
class Running:
    """A started job. ``gpus`` holds UUIDs without their prefix, and is empty until the job has its GPUs."""

    part: Part
    process: subprocess.Popen[str]
    state: str = "starting"
    gpus: tuple[str, ...] = ()
    until_s: float = float("inf")


class Stage:
    """The jobs on the server."""

    def __init__(self, folder: Path, fleet: str, *, is_still: bool) -> None:
        self._folder = folder
        self._is_still = is_still
        self._running: list[Running] = []
        gpus = list(FLEETS[fleet].gpus)
        self._parts = scene_for(len(gpus), is_cut=any(gpu.mig is not None for gpu in gpus))
        if len(gpus) > FAULTY_GPU and is_still:
            gpus[FAULTY_GPU] = replace(gpus[FAULTY_GPU], nvml="GPU_IS_LOST")
        elif len(gpus) > FAULTY_GPU:
            # Faulty but not lost: TensorFlow makes a context on every GPU, so a script without autogpu would fail.
            gpus[FAULTY_GPU] = replace(gpus[FAULTY_GPU], ecc=True, uncorrected_errors=3)
            self._parts = (on(ON_FAULTY_GPU, str(FAULTY_GPU)), *self._parts)
        self._fleet = replace(FLEETS[fleet], gpus=tuple(gpus))
        write_fleet(self._fleet, folder)

    def set_scene(self) -> None:
        """Start the first jobs one after the other, so that each gets the same GPU every time."""
        for part in self._parts:
            one = self._start(part)
            end_s = time.monotonic() + LONGEST_START_S
            while one.state == "starting" and time.monotonic() < end_s:
                self._listen()
            if one.state not in ("on", "waiting"):
                raise SystemExit(f"{part.script} of {part.who} did not start: {one.state}")

    def go_on(self) -> None:
        coming = cycle(COMING)
        next_s = time.monotonic() + BETWEEN_JOBS_S
        while not self._listen():
            now_s = time.monotonic()
            for one in list(self._running):
                if one.until_s <= now_s:
                    self._end(one)
            if now_s >= next_s and sum(one.state == "waiting" for one in self._running) < LONGEST_QUEUE:
                self._start(next(coming))
                next_s = now_s + BETWEEN_JOBS_S

    def close(self) -> None:
        for one in list(self._running):
            self._end(one)

    def _start(self, part: Part) -> Running:
        # All jobs run as one user, so the script's name shows the person.
        name = part.script if self._is_still else f"{part.who}-{part.script}"
        script = self._folder / "jobs" / name
        script.parent.mkdir(exist_ok=True)
        shutil.copy(JOB, script)
        command = [sys.executable, str(script), str(part.share), "1e6"]
        if part.has_autogpu:
            command = [sys.executable, "-m", "autogpu", "run", "--hold", "--", *command]
        own = part.environ(self._fleet.gpus[0].memory_bytes)
        process = subprocess.Popen(
            command,
            env={**os.environ, "HOME": str(self._folder), "AUTOGPU_POLICY": os.devnull, **own},
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self._running.append(Running(part, process))
        return self._running[-1]

    def _end(self, one: Running) -> None:
        self._running.remove(one)
        os.killpg(one.process.pid, signal.SIGKILL)
        one.process.communicate()
        self._show_load()

    def _listen(self) -> bool:
        """Read the jobs' output for up to ``LOOK_S``; return True if our standard input is closed."""
        jobs = {one.process.stdout: one for one in self._running}
        readable = select.select([sys.stdin, *jobs], [], [], LOOK_S)[0]
        for one in [jobs[stream] for stream in readable if stream in jobs]:
            one.gpus = tuple(one.process.stdout.readline().split()[1:])
            if not one.gpus:
                one.state = "ended"
                self._end(one)
                continue
            one.state = "on"
            self._backdate("job", one)
            one.until_s = time.monotonic() + one.part.stays_s
            self._show_load()
        for one in self._running:
            if one.state == "starting" and self._backdate("wait", one):
                one.state = "waiting"
        return sys.stdin in readable

    def _backdate(self, kind: str, one: Running) -> bool:
        """Set the age of the job's lease or queue ticket to ``part.minutes``; return True if the file exists."""
        files = list((self._folder / "leases").glob(f"{kind}.{os.getuid()}.{one.process.pid}.*"))
        written_s = time.time() - one.part.minutes * 60
        for file in files:
            os.utime(file, (written_s, written_s))
        return bool(files)

    def _show_load(self) -> None:
        """Set the utilization of each GPU to the highest of the jobs on it."""
        gpus = []
        for gpu in self._fleet.gpus:
            busy = [one.part.utilization for one in self._running if gpu.uuid[PREFIX:] in one.gpus]
            if busy:
                idle = () if max(busy) else IDLE_SAMPLES
                gpu = replace(gpu, utilization=max(busy), utilization_samples=idle)
            gpus.append(gpu)
        write_fleet(replace(self._fleet, gpus=tuple(gpus)), self._folder)


@contextmanager
def started_stage(environ: Mapping[str, str], folder: Path, fleet: str, *, is_still: bool = False) -> Iterator[None]:
    command = [sys.executable, "-m", "demo.lab.stage", str(folder), fleet, "still" if is_still else ""]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environ, cwd=ROOT, stdin=pipe, stdout=pipe) as stage:
        if stage.stdout is None or stage.stdout.readline() != b"ready\n":
            raise SystemExit("the jobs of the simulated server did not start")
        yield


def main(folder: str, fleet: str, still: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the lab's shell must not end these jobs
    stage = Stage(Path(folder), fleet, is_still=bool(still))
    try:
        stage.set_scene()
        print("ready", flush=True)
        if still:
            sys.stdin.read()
        else:
            stage.go_on()
    finally:
        stage.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
