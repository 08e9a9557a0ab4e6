"""A soak for a test: jobs of two users come, hold what they claimed and are killed at random.

The observer adds up the live claims all the while. In the end nothing may be locked, and one job gets every GPU.
"""

from __future__ import annotations

import os
import random
import selectors
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator, Mapping, Sequence

from benchmarks.contention_start import (
    DEADLINE_S,
    GIB,
    GPU_BYTES,
    UNEXPECTED,
    Gate,
    Job,
    Place,
    a_place,
    an_order,
    end_now,
    finish,
    hear,
    jobs_reaped,
    lease_folder,
    listen,
    observed,
    policy,
    start,
)
from tests.gpusim import Gpu, Server

USERS = (12345, 12346)
AT_ONCE = 48
NEEDS_GIB = (1, 2, 3, 4, 6, 8, 12, 18, 24)
KILLED = 0.5
WAITING = 0.4


@dataclass
class SoakedJob:
    """A job of the soak, and when it is to be killed, counted by the clock or from its decision; or never."""

    job: Job
    need_bytes: int
    kill_s: float | None
    kill_after_decision_s: float | None


def run(folder: Path, count: int, seed: int, *, limit_s: float) -> dict[str, Any]:
    """Jobs with claims of various sizes come and go, some of them by SIGKILL, while the observer adds up."""
    place = a_place_for_users(folder)
    totals = {"started": 0, "killed": 0, "got": 0}
    intervals: list[tuple[str, float, float, int]] = []
    faults: set[str] = set()
    machine = folder / "soak"
    machine.mkdir()
    machine.chmod(0o755)
    gpus = [Gpu(memory=GPU_BYTES)] * 8
    with Server(gpus, folder=machine) as server, jobs_reaped() as jobs, Gate() as go, Gate() as end:
        go.open()
        leases = lease_folder(machine)
        with observed(server, machine, leases, 0) as seen:
            for each in come_and_go(place, server, machine, leases, jobs, count, seed, (go, end), limit_s):
                account(each, totals, intervals, faults)
            everything = whole_machine(place, server, machine, leases, jobs, (go, end))
        calls = server.calls(call="refused")
    return {
        **totals,
        "asked": count,
        "over_bytes": seen["over_bytes"],
        "over": seen["over"],
        "over_by_reports_bytes": max(0, most_at_once(intervals) - GPU_BYTES),
        "most_promised_bytes": max(seen["most_promised_bytes"].values(), default=0),
        "refused_by_driver": len(calls),
        "held_at_end": seen["held_at_end"],
        "gpus_of_the_last": everything,
        "faults": sorted(faults),
    }


def come_and_go(
    place: Place,
    server: Server,
    folder: Path,
    leases: Path,
    jobs: list[Job],
    count: int,
    seed: int,
    gates: tuple[Gate, Gate],
    limit_s: float,
) -> Iterator[SoakedJob]:
    """Keep some jobs running until all have been; yields each when it has ended."""
    dice = random.Random(seed)
    until_s = time.monotonic() + limit_s
    running: list[SoakedJob] = []
    started = 0
    while running or (started < count and time.monotonic() < until_s):
        if started < count and len(running) < AT_ONCE and time.monotonic() < until_s:
            running.append(a_job(place, server, folder, leases, gates, dice))
            jobs.append(running[-1].job)
            started += 1
        # Short while there is room for more jobs, so that starting them sets the pace.
        wait_for_news(running, 0.0 if len(running) < AT_ONCE and started < count else 0.01)
        for each in list(running):
            if each.kill_after_decision_s is not None and "decided" in each.job.said:
                each.kill_s, each.kill_after_decision_s = time.monotonic() + each.kill_after_decision_s, None
            is_due = each.kill_s is not None and time.monotonic() > each.kill_s
            if is_due and each.job.killed_s is None and not each.job.is_done:
                end_now(each.job)
            if each.job.is_done:
                each.job.process.wait(30)
                running.remove(each)
                jobs.remove(each.job)
                each.job.process.stdout.close()
                yield each
        if time.monotonic() > until_s + DEADLINE_S:
            raise SystemExit(f"contention.py: {len(running)} jobs of the soak do not end")


def a_job(
    place: Place, server: Server, folder: Path, leases: Path, gates: tuple[Gate, Gate], dice: random.Random
) -> SoakedJob:
    need = dice.choice(NEEDS_GIB) * GIB
    busy = "wait" if dice.random() < WAITING else dice.choice(("share", "cpu", "error"))
    uid = dice.choice(place.users)
    hold_s = 0.2 + 3 * dice.random()
    kill_s = kill_after_decision_s = None
    if dice.random() < KILLED:
        # Half of them at any moment from the interpreter's start on, so also in the choice or in the queue.
        if dice.random() < 0.5:
            kill_s = time.monotonic() + 2.5 * dice.random()
        else:
            kill_after_decision_s = hold_s * dice.random()
    order = an_order("autogpu", need, hold_s, dice.randrange(1 << 30), folder, gates)
    environ = policy(need, busy, f"{dice.choice((1, 3, 10))}s")
    job = start(place, server, folder, leases, order, environ, gates, uid)
    return SoakedJob(job, need, kill_s, kill_after_decision_s)


def wait_for_news(running: Sequence[SoakedJob], timeout_s: float) -> None:
    with selectors.DefaultSelector() as selector:
        for each in running:
            selector.register(each.job.process.stdout, selectors.EVENT_READ, each.job)
        for key, _ in selector.select(timeout_s):
            hear(key.data)


def account(
    each: SoakedJob, totals: dict[str, int], intervals: list[tuple[str, float, float, int]], faults: set[str]
) -> None:
    job = each.job
    totals["started"] += 1
    totals["killed"] += job.killed_s is not None
    totals["got"] += bool(job.gpus)
    if job.gpus and job.end_s:
        # From the instant at which it was told to the one at which it let go: in between the claim is certain.
        decided_s = job.said["decided"]["decided_s"]
        intervals += [(uuid, decided_s, job.end_s, each.need_bytes) for uuid in job.gpus]
    text = job.errors.read_text(errors="replace")
    job.errors.unlink()
    if job.killed_s is None:
        faults.update(line for line in text.splitlines() if any(word in line for word in UNEXPECTED))
        if job.process.returncode or not job.said.get("grown", {}).get("has_room", True):
            faults.add(f"exit status {job.process.returncode}, {job.said}: {text[-500:]}")


def most_at_once(intervals: Sequence[tuple[str, float, float, int]]) -> int:
    """The most that was promised on one GPU at one instant, from when each promise began and ended."""
    changes = [(begun, size, uuid) for uuid, begun, end, size in intervals if begun < end]
    changes += [(end, -size, uuid) for uuid, begun, end, size in intervals if begun < end]
    promised: dict[str, int] = {}
    most = 0
    # What ends in the same instant ends first.
    for _, size, uuid in sorted(changes):
        promised[uuid] = promised.get(uuid, 0) + size
        most = max(most, promised[uuid])
    return most


def whole_machine(
    place: Place, server: Server, folder: Path, leases: Path, jobs: list[Job], gates: tuple[Gate, Gate]
) -> int:
    """How many GPUs a fresh job gets that asks for all of them, with no other job on them."""
    order = an_order("autogpu", None, 0.0, 0, folder, gates)
    environ = policy(None, "error", "1s", AUTOGPU_COUNT="8")
    job = start(place, server, folder, leases, order, environ, gates, place.users[-1])
    jobs.append(job)
    listen([job], "decided")
    finish([job])
    jobs.remove(job)
    job.process.stdout.close()
    return len(job.gpus)


def a_place_for_users(folder: Path) -> Place:
    """A Python and the code where two other users can reach them; else one user's, as where we are not root."""
    for python in (os.path.realpath(sys.executable), shutil.which("python3", path="/usr/bin:/usr/local/bin")):
        if python and os.geteuid() == 0:
            place = a_place(folder, str(python), USERS)
            program = "import autogpu.allocation, autogpu.policy.sources, subprocess, sys; " + (
                "subprocess.run([sys.executable, '-I', '-c', ''], check=True); sys.exit(sys.version_info < (3, 9))"
            )
            try:
                done = subprocess.run(
                    [python, "-c", program],
                    env={"PYTHONPATH": str(folder / "code")},
                    cwd=folder,
                    user=USERS[0],
                    group=USERS[0],
                    extra_groups=[],
                    capture_output=True,
                    timeout=60,
                    check=False,
                )
            except OSError:
                continue
            if done.returncode == 0:
                return place
    return a_place(folder, sys.executable)


def failures(result: Mapping[str, Any]) -> list[str]:
    """What must not be, in words; empty after a good soak."""
    checks = {
        f"a GPU was over-promised by {result['over_bytes']} bytes: {result['over']}": result["over_bytes"],
        f"by the jobs' reports, by {result['over_by_reports_bytes']} bytes": result["over_by_reports_bytes"],
        f"{result['refused_by_driver']} times a job got less than it was promised": result["refused_by_driver"],
        f"leases are held that no job has: {result['held_at_end']}": result["held_at_end"],
        f"a fresh job got {result['gpus_of_the_last']} of 8 GPUs": result["gpus_of_the_last"] != 8,
        f"jobs said: {result['faults']}": result["faults"],
        f"{result['started']} of {result['asked']} jobs were run in time": result["started"] < result["asked"],
    }
    return [text for text, is_so in checks.items() if is_so]
