"""A day on the simulated server, with processes that choose by autogpu: it goes as the replay foretells.

The processes are real, and so are their readings, claims, queue and memory; the clock is not: each is told when to
start, to grow and to end, at the times of the day's jobs, and the next one is told once the last has done it. How old a
claim is by that clock is written into its lease. Jobs use
little of a GPU, so that none slows another down, and take their memory in whole pieces of the driver. Then everything
agrees: who starts when, in which order, on which GPU and under which cap, and what dies.
"""

import heapq
import json
import os
import select
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from autogpu.lease.queue import LOOK_S as LOOK_EVERY_S
from autogpu.lease.queue import READ_S
from benchmarks.contention_start import a_place, lease_folder
from benchmarks.lab.day import GIB, Setting, jobs_of_day
from benchmarks.lab.replay import IMPORT_S, LOOK_S, Replay, noticed_after_s, users_of
from benchmarks.lab.rules import Autogpu
from benchmarks.lab.server import CONTEXT_BYTES, GROWTH_S, GROWTH_STEPS
from tests.gpusim import Gpu, Server

SETTING = Setting(load=1.2, gpus=2, card_bytes=11 * GIB, jobs=16)
SEED, UTILIZATION_PERCENT = 7, 5
PIECE = 2 << 20

# A look, the reading before it, and what both take on a busy machine.
LOOKS_S = LOOK_EVERY_S + READ_S + 0.5


def jobs_of(busy):
    """The day's, in three hours."""
    jobs = [
        replace(
            job,
            submitted_s=job.submitted_s / 8,
            duration_s=job.duration_s / 8 + GROWTH_S,
            peak_bytes=CONTEXT_BYTES + step_bytes(job) * GROWTH_STEPS,
            utilization=UTILIZATION_PERCENT / 100,
        )
        for job in jobs_of_day(SETTING, SEED)
    ]
    if busy == "wait":
        # Fewer, since each end is followed by a pause; a third says what it needs.
        jobs = [replace(job, need_bytes=job.peak_bytes if job.number % 3 == 0 else None) for job in jobs[:10]]
    return jobs


def step_bytes(job):
    return (job.peak_bytes - CONTEXT_BYTES) // GROWTH_STEPS // PIECE * PIECE


class Day:
    """What happens on the simulated server.

    Attributes:
        starts: As :class:`benchmarks.lab.replay.Outcome` has them, and so are the others.
    """

    def __init__(self, server, place, folder, busy):
        self.starts, self.deaths, self.took_s = [], [], {}
        self._server, self._place, self._folder, self._busy = server, place, folder, busy
        self._leases = lease_folder(folder)
        self._users = users_of(SEED)
        self._events, self._order = [], 0
        self._waiting = {}
        self._since_s = {}
        self._on = [0 for _ in server.gpus]

    def run(self, jobs):
        for job in jobs:
            self._at(job.submitted_s + IMPORT_S, "go", job)
        while self._events:
            now_s, _, what, job, process = heapq.heappop(self._events)
            if what == "go":
                self._ask(job, now_s)
            elif what == "look":
                self._let_others_look(now_s)
            elif process.poll() is None:
                self._tell(process, what)
                if what == "end":
                    self.took_s[job.number] = now_s - job.submitted_s
                    self._is_gone(job, process, now_s)
                elif self._hear(process)["died"]:
                    self._die(job, process, now_s)

    def _at(self, time_s, what, job, process=None):
        self._order += 1
        heapq.heappush(self._events, (time_s, self._order, what, job, process))

    def _ask(self, job, now_s):
        self._tell_ages(now_s)
        process = self._begin(job)
        assert self._hear(process)["event"] == "ready"
        self._tell(process, "go")
        tickets = len(self._waiting)
        while len(list(self._leases.glob("wait.*"))) <= tickets and not self._has_said(process, 0.02):
            pass
        if self._has_said(process, 0.0):
            self._started(job, process, now_s)
        else:
            self._waiting[process] = job
        self._let_others_look(now_s)

    def _started(self, job, process, now_s):
        told = self._hear(process)
        index = [gpu.uuid for gpu in self._server.gpus].index(told["gpus"][0])
        self.starts.append((now_s, job.number, index, told["cap_bytes"]))
        self._load(index, 1)
        self._since_s[process.pid] = now_s
        for minutes in (1, 2):
            self._at(now_s + minutes * 60.0 + LOOK_S, "look", None)
        if told["died"]:
            self._die(job, process, now_s)
            return
        for step in range(1, GROWTH_STEPS + 1):
            self._at(now_s + step * GROWTH_S / GROWTH_STEPS, "step", job, process)
        self._at(now_s + job.duration_s, "end", job, process)

    def _die(self, job, process, now_s):
        self.deaths.append((now_s, job.number))
        self._at(now_s + noticed_after_s(self._users) + IMPORT_S, "go", job)
        self._is_gone(job, process, now_s)

    def _is_gone(self, job, process, now_s):
        """Its GPU is free for others: let those that wait have the time to take it."""
        process.wait(30)
        self._load(next(index for _, number, index, _ in reversed(self.starts) if number == job.number), -1)
        self._let_others_look(now_s)

    def _let_others_look(self, now_s):
        self._tell_ages(now_s)
        # A look of each that waits at a reading from now on, and again once one of them has started.
        until_s = time.monotonic() + LOOKS_S
        while self._waiting and time.monotonic() < until_s:
            for process, waiting in list(self._waiting.items()):
                if self._has_said(process, 0.02):
                    del self._waiting[process]
                    self._started(waiting, process, now_s)
                    until_s = time.monotonic() + LOOKS_S

    def _tell_ages(self, now_s):
        for file in self._leases.glob("job.*"):
            # Of a process that has just ended, whose file another one may take away at any moment.
            with suppress(FileNotFoundError):
                fields = json.loads(file.read_text())
                age_s = now_s - self._since_s.get(fields["pid"], now_s)
                # While the clock stands, nobody comes to be a minute old.
                written_s = time.time() - (120.0 if age_s >= 60.0 else 0.0)
                os.utime(str(file), (written_s, written_s))

    def _begin(self, job):
        environ = {
            "AUTOGPU_LEASE_DIR": str(self._leases),
            "AUTOGPU_POLICY": os.devnull,
            "AUTOGPU_BUSY": self._busy,
            "AUTOGPU_WAIT": "1h",
            "LD_LIBRARY_PATH": self._place.libraries,
            "PYTHONPATH": str(self._place.folder / "code"),
        }
        if job.need_bytes is not None:
            environ["AUTOGPU_NEED"] = f"{job.need_bytes // (1 << 20)}MiB"
        order = json.dumps({"step_bytes": step_bytes(job)})
        with (self._folder / "errors").open("a") as errors:
            return self._server.popen(
                [self._place.python, str(self._place.folder / "code" / "lab_job.py"), order],
                environ=environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=self._folder,
            )

    @staticmethod
    def _tell(process, what):
        process.stdin.write(f"{what}\n")
        process.stdin.flush()

    @staticmethod
    def _hear(process):
        return json.loads(process.stdout.readline())

    @staticmethod
    def _has_said(process, timeout_s):
        return bool(select.select([process.stdout], [], [], timeout_s)[0])

    def _load(self, index, change):
        self._on[index] += change
        self._server.change(index, utilization=UTILIZATION_PERCENT * self._on[index])


@pytest.mark.thorough
@pytest.mark.turns(2)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("busy", ["share", "wait"])
def test_real_processes_do_what_the_replay_foretells(tmp_path, busy):
    jobs = jobs_of(busy)
    outcome = Replay(SETTING, SEED, Autogpu(busy, wait_s=float("inf")), jobs).run()
    place = a_place(tmp_path, sys.executable)
    shutil.copy(Path(__file__).with_name("lab_job.py"), tmp_path / "code")
    gpus = [Gpu(memory=SETTING.card_bytes)] * SETTING.gpus
    with Server(gpus, folder=tmp_path, context=CONTEXT_BYTES) as server:
        day = Day(server, place, tmp_path, busy)
        day.run(jobs)

    # A day on which nothing meets would show nothing.
    assert bool(outcome.deaths) == (busy == "share")
    assert max(start[0] - jobs[start[1]].submitted_s for start in outcome.starts) > 60 + IMPORT_S
    assert [start[1:] for start in day.starts] == [start[1:] for start in outcome.starts]
    assert [start[0] for start in day.starts] == pytest.approx([start[0] for start in outcome.starts])
    assert [number for _, number in day.deaths] == [number for _, number in outcome.deaths]
    assert day.took_s == pytest.approx(outcome.took_s)
