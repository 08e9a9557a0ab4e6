"""The process that has the jobs: sets the scene, then lets jobs come and go until its input is closed.

``python -m demo.lab.stage ORDERS`` runs on the simulated server. ``ready`` on its output means that the scene is set;
with ``is_still`` nothing happens after that.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Iterator, Mapping

from autogpu import lease
from autogpu.devices import probe
from autogpu.devices.model import Inventory
from demo.lab import job, people
from demo.lab.scene import MOST_FOR_VISITORS, Part, comings, scene_for
from tests.gpusim.__main__ import fleet_named
from tests.gpusim.fleet import Fleet
from tests.gpusim.fleets import FLEETS
from tests.gpusim.server import write_fleet

LONGEST_START_S = 60.0
LONGEST_QUEUE = 3
# An idle GPU of the notebook: as far back as the driver's samples reach.
IDLE_SAMPLES = (0,) * 64


@dataclass(frozen=True)
class Orders:
    """What the lab tells its stage.

    Attributes:
        folder: That of the simulated server.
        fleet: Its name or its file.
        seed: Of what comes and goes.
        users: Uids by name; empty where all jobs are our own.
        is_still: Whether nothing happens after the scene is set.
    """

    folder: str
    fleet: str
    seed: int = 1
    users: Mapping[str, int] = field(default_factory=dict)
    is_still: bool = False

    def text(self) -> str:
        """As the one argument of the command."""
        return json.dumps(asdict(self))


@dataclass
class Running:
    """A job that was started."""

    part: Part
    pid: int
    reports: int
    state: str = "starting"
    uuids: tuple[str, ...] = ()
    until_s: float | None = None


class Stage:
    """All jobs of the server."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._folder = Path(orders.folder)
        self._fleet: Fleet = fleet_named(orders.fleet)
        # A file may describe what is on its GPUs, and anything may be too large for those.
        self._is_ours = orders.fleet in FLEETS
        gpus = self._fleet.gpus
        self._scene = scene_for(len(gpus), is_cut=any(gpu.mig is not None for gpu in gpus))
        self._running: list[Running] = []
        self._last: Inventory = self._prepared()

    def _prepared(self) -> Inventory:
        """Load, and do once, all that a job does: some users could not read it from this checkout."""
        lost = self._scene.lost
        if lost is not None and self._is_ours:
            gpus = list(self._fleet.gpus)
            gpus[lost] = replace(gpus[lost], nvml="GPU_IS_LOST")
            self._fleet = replace(self._fleet, gpus=tuple(gpus))
            write_fleet(self._fleet, self._folder)
        last = probe.finish(probe.start(os.environ))
        if last.failure:
            raise SystemExit(f"the simulated server can't be read: {last.failure}")
        probe.prepare(last)
        job.request(os.environ, last)
        folder = lease.find_folder(os.environ)
        held = lease.acquire_lease(lease.Lease(folder, ""), lambda *_: {last.devices[0].uuid: 1})
        if held is not None:
            held.release()
        return last

    def set_scene(self) -> None:
        """Start what is there when one comes, one after the other: so it is the same each time."""
        for part in self._scene.parts:
            one = self._start(part)
            end_s = time.monotonic() + LONGEST_START_S
            while one.state == "starting" and time.monotonic() < end_s:
                self._listen(0.5)
            if one.state not in ("on", "waiting") and self._is_ours:
                raise SystemExit(f"{part.script} of {part.who} did not start: {one.state}")

    def go_on(self) -> None:
        """Let jobs come and go until the input is closed."""
        coming: Iterator[tuple[float, Part]] = comings(self._orders.seed, self._free()[:MOST_FOR_VISITORS])
        next_s, part = float("inf"), None
        for one in self._running:
            self._will_end(one)
        while True:
            if not self._orders.is_still and part is None:
                delay_s, part = next(coming)
                next_s = time.monotonic() + delay_s
            ends = [one.until_s for one in self._running if one.until_s is not None]
            if self._listen(max(0.0, min([next_s, *ends, time.monotonic() + 60.0]) - time.monotonic())):
                return
            now_s = time.monotonic()
            for one in [one for one in self._running if one.until_s is not None and one.until_s <= now_s]:
                self._end(one)
            if part is not None and now_s >= next_s:
                if sum(one.state == "waiting" for one in self._running) < LONGEST_QUEUE:
                    self._start(part)
                part = None

    def _will_end(self, one: Running) -> None:
        is_for_good = self._orders.is_still or one.part.stays_s is None
        one.until_s = None if is_for_good else time.monotonic() + (one.part.stays_s or 0)

    def _free(self) -> list[str]:
        """UUIDs of the GPUs and MIG instances that can be read and on which nobody is."""
        taken = {uuid for one in self._running for uuid in one.uuids}
        readable = probe.finish(probe.start(os.environ)).devices
        return [device.uuid for device in readable if not device.mig_enabled and device.uuid not in taken]

    def close(self) -> None:
        """End every job."""
        for one in list(self._running):
            self._end(one)

    def _start(self, part: Part) -> Running:
        if not (self._orders.users or self._orders.is_still):
            part = replace(part, script=f"{part.who}-{part.script}")  # all are of one user, and a person is to be seen
        reader, writer = os.pipe()
        memory = self._last.devices[0].memory_total_bytes or 0
        pid = job.start(part, self._orders.users.get(part.who), self._last, memory, writer)
        os.close(writer)
        self._running.append(Running(part, pid, reader))
        return self._running[-1]

    def _end(self, one: Running) -> None:
        self._running.remove(one)
        os.close(one.reports)
        os.kill(one.pid, signal.SIGKILL)
        os.waitpid(one.pid, 0)
        self._show_load()

    def _listen(self, seconds: float) -> bool:
        """Take in what jobs report, for so long; whether our input is closed."""
        reports = {one.reports: one for one in self._running}
        for readable in select.select([0, *reports], [], [], seconds)[0]:
            if readable == 0:
                if not os.read(0, 1024):
                    return True
                continue
            one = reports[readable]
            text = os.read(readable, 4096).decode()
            if not text:
                one.state = f"ended, {one.state}"
                self._end(one)
                continue
            word, *rest = text.splitlines()[-1].split(" ")
            if word == "on":
                one.state, one.uuids = "on", tuple(rest)
                self._will_end(one)
                self._show_load()
            else:
                one.state = text.splitlines()[-1] if word == "failed" else word
        return False

    def _show_load(self) -> None:
        """What the driver shows of each GPU's work is what the jobs on it are said to do."""
        gpus = []
        for gpu in self._fleet.gpus:
            busy = [one.part.utilization for one in self._running if gpu.uuid in one.uuids]
            if busy:
                idle = () if max(busy) else IDLE_SAMPLES
                gpu = replace(gpu, utilization=max(busy), utilization_samples=idle)
            gpus.append(gpu)
        write_fleet(replace(self._fleet, gpus=tuple(gpus)), self._folder)


def main(text: str) -> None:
    """Have the jobs until the input is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the lab's shell is not for the others' jobs
    people.end_with_parent(os.getppid(), signal.SIGKILL)
    stage = Stage(Orders(**json.loads(text)))
    try:
        stage.set_scene()
        print("ready", flush=True)
        stage.go_on()
    finally:
        stage.close()


if __name__ == "__main__":
    main(sys.argv[1])
