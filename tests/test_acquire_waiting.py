"""A process that waits for a GPU: its readings of the driver, its place in the queue, and its reports."""

import itertools
import threading
import time
from pathlib import Path

import pytest

from autogpu import acquire, lease
from autogpu.devices.model import FailureCause, Inventory, UnreadableDevice
from autogpu.lease import Demand, GaveUp, model
from autogpu.selection.decision import Reason, Verdict
from autogpu.selection.model import LastRuns
from autogpu.text import GIB
from autogpu.variables import LEASE_DIR
from tests.support.acquiring import BUSY, asking, leases
from tests.support.holders import let_age, waiting_job
from tests.support.values import gpu, inventory
from tests.test_acquire import full_disk

FAILED = Inventory(failure="NVML reports: timeout", failure_cause=FailureCause.DRIVER)


def ends_while(change):
    """Return a function for ``on_wait``. Its first call starts a timer that calls ``change`` after 0.1 s."""
    looks = itertools.count()
    return lambda queue, decision: next(looks) or threading.Timer(0.1, change).start()


@pytest.mark.parametrize(
    "failed",
    [FAILED, inventory(gpu(1), unreadable=(UnreadableDevice(0, "GPU is lost"),))],
    ids=["driver-fails", "card-fails"],
)
def test_readings_that_fail_for_a_moment_do_not_end_a_wait(acquired, other, failed):
    keeper, short = other({0: 24}), other({1: 24})
    busy = inventory(gpu(0, pids=[keeper.pid], used_gib=20, busy=90))
    readings, failures = [busy], []

    def ends():
        readings[0] = failed
        short.end()

    def read():
        if readings[0] is failed:
            failures.append(failed)
            if len(failures) == 4:  # in a row
                readings[0] = inventory(gpu(0))
                keeper.end()
                return failed
        return readings[0]

    taken = acquired(asking(*busy.devices, busy="wait", wait_s=60.0), read=read, on_wait=ends_while(ends))
    assert (len(failures), taken.decision.verdict, taken.lease.claims) == (4, Verdict.TAKE, {gpu(0).uuid: 24 * GIB})


def test_wait_goes_on_if_failed_and_good_readings_alternate(acquired, other, monkeypatch):
    holder, clock = other({0: 24}), [time.monotonic()]
    monkeypatch.setattr(acquire, "monotonic_s", lambda: clock[0])
    readings = itertools.chain([FAILED, inventory(BUSY)] * 3, itertools.repeat(None))

    def read():
        clock[0] += acquire._GONE_S - 1
        reading = next(readings)
        if reading is None:
            holder.end()
        return reading or inventory(gpu(0))

    taken = acquired(asking(BUSY, busy="wait", wait_s=600.0), read=read)
    assert (taken.decision.verdict, taken.lease.claims) == (Verdict.TAKE, {BUSY.uuid: 24 * GIB})


@pytest.mark.parametrize("failed", [pytest.param(FAILED, id="driver-fails"), pytest.param(None, id="driver-is-silent")])
def test_driver_that_fails_or_is_silent_for_a_minute_ends_a_wait(acquired, other, monkeypatch, failed):
    other({0: 24})
    clock = [time.monotonic()]
    monkeypatch.setattr(acquire, "monotonic_s", lambda: clock[0])

    def read():
        clock[0] += acquire._SILENT_S
        return failed

    taken = acquired(asking(BUSY, busy="wait", wait_s=86400.0), read=read)
    decision = taken.decision
    assert (decision.verdict, decision.reason) == (Verdict.CANNOT_CHOOSE, Reason.DRIVER_FAILURE)


def test_driver_that_is_silent_for_seconds_does_not_end_a_wait(acquired, other, monkeypatch):
    holder = other({0: 24})
    clock = [time.monotonic()]
    monkeypatch.setattr(acquire, "monotonic_s", lambda: clock[0])
    readings = itertools.chain([None] * 3, itertools.repeat(inventory(gpu(0))))

    def read():
        clock[0] += acquire._SILENT_S / 3
        reading = next(readings)
        if reading is not None:
            holder.end()
        return reading

    taken = acquired(asking(BUSY, busy="wait", wait_s=86400.0), read=read)
    assert (taken.decision.verdict, taken.lease.claims) == (Verdict.TAKE, {BUSY.uuid: 24 * GIB})


def test_waiter_takes_its_ticket_before_it_reads_the_driver(acquired, other, tmp_path):
    holder, places = other({0: 24}), []

    def read():
        places.append([waiter.is_mine for waiter in leases(tmp_path).waiters])
        holder.end()
        return inventory(gpu(0))

    acquired(asking(BUSY, busy="wait", wait_s=60.0), read=read)
    assert places[0] == [True]


def test_waiter_passes_another_that_can_not_use_the_free_gpu(acquired, other, tmp_path, monkeypatch):
    # Otherwise the first waiter would soon count as silent, and the job could pass it for that reason.
    monkeypatch.setattr(model, "SILENCE_S", 600.0)
    holder, keeper = other({0: 24}), other({1: 24})

    def read():
        is_there = Path(f"/proc/{holder.pid}/fd").exists()
        first = gpu(0, pids=[holder.pid], used_gib=20, busy=90) if is_there else gpu(0)
        return inventory(first, gpu(1, pids=[keeper.pid], used_gib=20, busy=90))

    with waiting_job({LEASE_DIR: str(tmp_path)}, Demand(uuids=(gpu(1).uuid,))):
        asked = asking(*read().devices, busy="wait", wait_s=30.0)
        taken = acquired(asked, read=read, on_wait=ends_while(holder.end))
    assert (taken.decision.verdict, taken.lease.claims) == (Verdict.TAKE, {gpu(0).uuid: 24 * GIB})


def test_ticket_contains_the_memory_of_the_last_runs_and_the_wait(acquired, other, tmp_path):
    keeper = other({0: 24})
    let_age(tmp_path, 120)
    last_runs = {gpu(0).name: LastRuns("a.py", 9 * GIB)}
    asked = asking(gpu(0, pids=[keeper.pid], used_gib=16, busy=50), wait_s=59.5, last_runs=last_runs)
    seen = []

    def on_wait(queue, decision):
        seen.extend(waiter.demand for waiter in leases(tmp_path).waiters)
        keeper.end()

    acquired(asked, read=lambda: inventory(gpu(0)), on_wait=on_wait)
    assert [(demand.last_runs, demand.wait_s) for demand in seen[:1]] == [({gpu(0).uuid: 9 * GIB}, 60)]


@pytest.mark.parametrize("need_bytes", [None, 6 * GIB])
def test_job_joins_a_used_gpu_past_a_waiter_for_a_free_gpu(acquired, other, tmp_path, need_bytes):
    keeper = other({0: 24})
    let_age(tmp_path, 120)
    asked = asking(gpu(0, pids=[keeper.pid], used_gib=4, busy=50), wait_s=60.0)
    waits = []
    with waiting_job({LEASE_DIR: str(tmp_path)}, Demand(bytes_per_gpu=need_bytes, uuids=(gpu(0).uuid,))):
        taken = acquired(asked, on_wait=lambda queue, decision: waits.append(decision.reason))
    assert (waits, taken.decision.verdict, list(taken.decision.caps)) == ([], Verdict.TAKE, [gpu(0).uuid])


def test_wait_is_reported_if_no_lease_can_be_written(acquired, other, monkeypatch):
    other({0: 24})
    clock, told = [time.monotonic()], []
    monkeypatch.setattr(acquire, "monotonic_s", lambda: clock[0])

    def on_wait(queue, decision):
        told.append((queue.position, queue.count, queue.timeout_s))
        clock[0] += 7201.0

    with full_disk(), pytest.raises(GaveUp) as gave_up:
        acquired(asking(gpu(0), gpu(1), gpu(2), count=3, busy="wait", wait_s=7200.0), on_wait=on_wait)
    assert told == [(1, 3, 7200.0)]
    assert (gave_up.value.timeout_s, gave_up.value.position) == (7200.0, 1)


@pytest.mark.slow  # the driver is read every two seconds
def test_waiter_reads_the_driver_again_if_no_lease_can_be_written(acquired):
    with full_disk():
        taken = acquired(asking(BUSY, busy="wait", wait_s=30.0), read=lambda: inventory(gpu(0)))
    assert (taken.decision.verdict, taken.is_unclaimed) == (Verdict.TAKE, True)


def test_time_until_the_leases_fail_does_not_count_as_a_wait(acquired, monkeypatch):
    clock = [time.monotonic()]
    monkeypatch.setattr(acquire, "monotonic_s", lambda: clock[0])

    def fails_late(*arguments, **options):
        clock[0] += 5.0
        raise lease.LeaseUnavailable(lease.LeaseProblem(lease.Fault.UNUSABLE))

    monkeypatch.setattr(lease, "choose_and_lease", fails_late)
    taken = acquired(asking(gpu(0)))
    assert (taken.decision.verdict, taken.decision.request.waited_s) == (Verdict.TAKE, 0.0)
