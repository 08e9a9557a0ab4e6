"""A day of seconds on the simulated server, with processes that choose by autogpu: the replay foretells it.

Stated is: the same jobs start in the same order on the same GPUs, the same ones end for memory, each start comes within
half a second and each cap is within one step of a neighbour's growth (1 GiB). Left out are days in which two things
happen so close together that a process's own time to decide could exchange them.
"""

from __future__ import annotations

import heapq
import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.contention_start import a_place, lease_folder
from benchmarks.lab.day import GIB, Setting, jobs_of_day
from benchmarks.lab.replay import IMPORT_S, Replay, noticed_after_s, users_of
from benchmarks.lab.rules import Autogpu
from benchmarks.lab.server import CONTEXT_BYTES, GROWTH_S, GROWTH_STEPS
from tests.gpusim import Gpu, Server

# A second here is a minute there.
FASTER = 60.0
SETTING = Setting(gpus=2, card_bytes=11 * GIB, jobs=9)
# In seconds here.
TOLERANCE_S, APART_S, LONGEST_S = 0.5, 0.2, 60.0


def compressed_day(seed):
    """The day's jobs, a quarter of an hour of submissions, each on the GPU for some minutes and at full speed."""
    jobs = jobs_of_day(SETTING, seed)
    return [
        replace(
            job,
            submitted_s=70.0 * place,
            duration_s=min(max(job.duration_s / 20, 150.0), 500.0),
            utilization=0.1,
        )
        for place, job in enumerate(jobs)
    ]


def foretold(busy):
    """A seed whose day is neither too long nor too close to call, its jobs, and what the replay makes of them."""
    for seed in range(1000):
        jobs = compressed_day(seed)
        outcome = Replay(SETTING, seed, Autogpu(busy), jobs).run()
        ends = [jobs[number].submitted_s + took for number, took in outcome.took_s.items()]
        times = sorted({*(start[0] for start in outcome.starts), *ends, *(time_s for time_s, _ in outcome.deaths)})
        if busy == "wait":
            # Who has waited starts at the end of another, which is one event.
            times = sorted({*(job.submitted_s + IMPORT_S for job in jobs), *ends})
        is_apart = all((after - before) / FASTER > APART_S for before, after in zip(times, times[1:]))
        has_met = bool(outcome.deaths) if busy == "share" else len(outcome.starts) > SETTING.gpus
        if is_apart and has_met and max(times) / FASTER < LONGEST_S:
            return seed, jobs, outcome
    raise AssertionError("no day of these seeds is clear enough")


class Day:
    """What happens on the simulated server."""

    def __init__(self, server, place, leases, folder, seed, busy):
        self.starts, self.deaths, self.done = [], [], {}
        self._server, self._place, self._leases, self._folder, self._busy = server, place, leases, folder, busy
        self._users = users_of(seed)
        self._told = selectors.DefaultSelector()
        self._due = []
        self._on = {gpu.uuid: 0 for gpu in server.gpus}
        self._begun_s = None

    def run(self, jobs):
        attempts = [(job.submitted_s + IMPORT_S, job.number, job, self._start(job)) for job in jobs]
        for *_, process in attempts:
            assert json.loads(process.stdout.readline())["event"] == "ready"
        self._due = attempts
        heapq.heapify(self._due)
        self._begun_s = time.monotonic()
        while len(self.done) < len(jobs):
            now_s = self._now_s()
            assert now_s < 3 * LONGEST_S * FASTER, (self.starts, self.deaths, self.done)
            while self._due and self._due[0][0] <= now_s:
                *_, process = heapq.heappop(self._due)
                process.stdin.write("go\n")
                process.stdin.flush()
            pause_s = (self._due[0][0] - now_s) / FASTER if self._due else 1.0
            for key, _ in self._told.select(max(0.0, min(pause_s, 1.0))):
                self._hear(*key.data)
        self._told.close()

    def _start(self, job):
        order = {
            "peak_bytes": job.peak_bytes,
            "context_bytes": CONTEXT_BYTES,
            "steps": GROWTH_STEPS,
            "step_s": GROWTH_S / GROWTH_STEPS / FASTER,
            "duration_s": job.duration_s / FASTER,
        }
        environ = {
            "AUTOGPU_LEASE_DIR": str(self._leases),
            "AUTOGPU_POLICY": os.devnull,
            "AUTOGPU_BUSY": self._busy,
            "AUTOGPU_WAIT": "1h",
            "LD_LIBRARY_PATH": self._place.libraries,
            "PYTHONPATH": str(self._place.folder / "code"),
        }
        with (self._folder / "errors").open("a") as errors:
            process = self._server.popen(
                [self._place.python, str(self._place.folder / "code" / "lab_job.py"), json.dumps(order)],
                environ=environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=self._folder,
            )
        self._told.register(process.stdout, selectors.EVENT_READ, (job, process))
        return process

    def _hear(self, job, process):
        line = process.stdout.readline()
        if not line:
            self._told.unregister(process.stdout)
            process.wait(30)
            return
        told = json.loads(line)
        time_s = (told.get("time_s", 0.0) - self._begun_s) * FASTER
        if told["event"] == "decided":
            (gpu,) = told["gpus"]
            index = [each.uuid for each in self._server.gpus].index(gpu)
            self.starts.append((time_s, job.number, index, told["cap_bytes"]))
            self._load(index, 1)
        elif told["event"] in ("died", "done"):
            index = next(start[2] for start in reversed(self.starts) if start[1] == job.number)
            self._load(index, -1)
            if told["event"] == "done":
                self.done[job.number] = time_s
            else:
                self.deaths.append((time_s, job.number))
                again_s = time_s + noticed_after_s(self._users) + IMPORT_S
                heapq.heappush(self._due, (again_s, job.number, job, self._start(job)))

    def _load(self, index, change):
        uuid = self._server.gpus[index].uuid
        self._on[uuid] += change
        self._server.change(index, utilization=10 * self._on[uuid])

    def _now_s(self):
        return (time.monotonic() - self._begun_s) * FASTER


@pytest.fixture
def folder():
    made = Path(tempfile.mkdtemp(prefix="autogpu-day-"))
    yield made
    shutil.rmtree(made)


@pytest.mark.thorough
@pytest.mark.timeout(240)
@pytest.mark.turns(2)
@pytest.mark.parametrize("busy", ["share", "wait"])
def test_real_processes_do_what_the_replay_foretells(folder, busy):
    seed, jobs, outcome = foretold(busy)
    place = a_place(folder, sys.executable)
    shutil.copy(Path(__file__).with_name("lab_job.py"), folder / "code")
    gpus = [Gpu(memory=SETTING.card_bytes)] * SETTING.gpus
    with Server(gpus, folder=folder, context=CONTEXT_BYTES) as server:
        day = Day(server, place, lease_folder(folder), folder, seed, busy)
        day.run(jobs)

    assert [start[1:3] for start in day.starts] == [start[1:3] for start in outcome.starts]
    assert [number for _, number in day.deaths] == [number for _, number in outcome.deaths]
    late_s = [(seen[0] - expected[0]) / FASTER for seen, expected in zip(day.starts, outcome.starts)]
    assert max(map(abs, late_s)) < TOLERANCE_S
    for seen, expected in zip(day.starts, outcome.starts):
        assert (seen[3] is None) == (expected[3] is None)
        assert abs((seen[3] or 0) - (expected[3] or 0)) <= GIB
    took_s = [(day.done[number] - jobs[number].submitted_s - took) / FASTER for number, took in outcome.took_s.items()]
    assert max(map(abs, took_s)) < TOLERANCE_S
