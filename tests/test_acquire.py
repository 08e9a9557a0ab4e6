"""Acquiring GPUs: the choice, the wait, the lease, the children of a job, and claims that fail."""

import contextlib
import errno
import os
import re
import resource
import shutil
import sys
import time
from typing import Any

import pytest

from autogpu.acquire import is_sufficient, script_name
from autogpu.caps import Cap, CapCause, within_context
from autogpu.devices.model import ComputeMode, FailureCause, Inventory
from autogpu.engines.model import Grant, LocalRank
from autogpu.frameworks.memory import caps
from autogpu.frozen import replace
from autogpu.lease import Fault, GaveUp
from autogpu.policy import Policy
from autogpu.selection.decision import ParentProcess, Reason, Verdict
from autogpu.text import GIB
from autogpu.variables import CUDA_VISIBLE_DEVICES as VISIBLE
from autogpu.variables import LEASE_DIR
from autogpu.variables import ORIGINAL_VISIBLE_DEVICES as ORIGINAL
from autogpu.variables import WRITTEN_VISIBLE_DEVICES as WRITTEN
from tests.support.acquiring import (
    BUSY,
    FULL,
    JOB,
    TWO,
    WAITS,
    asking,
    beside,
    bytes_on,
    cap_bytes,
    child_of,
    leases,
    rank_of,
)
from tests.support.holders import let_age
from tests.support.values import gpu

HALF = Grant("Ray", fraction=0.5)


class Asked(Exception):
    """Raised in ``on_wait`` to end a wait."""


@pytest.mark.parametrize(("executable", "name"), [("/opt/bin/py3", "py3"), ("", "python"), (None, "python")])
def test_script_name_is_without_folder_and_arguments(monkeypatch, executable, name):
    monkeypatch.setattr(sys, "executable", executable)
    assert script_name(["/home/me/train.py", "--key", "secret"]) == "train.py"
    assert [script_name(argv) for argv in (["-c"], ["-m"], [""], [])] == [name] * 4


# Waiting


@pytest.mark.slow  # the driver is read every two seconds
def test_wait_ends_if_the_driver_keeps_failing(acquired, tmp_path):
    lost = []
    result = acquired(
        asking(BUSY, busy="wait", wait_s=60.0),
        read=lambda: Inventory(failure="NVML reports: GPU is lost", failure_cause=FailureCause.DRIVER),
        on_wait=lambda queue, decision: lost.append(decision.verdict),
    )
    assert set(lost) == {Verdict.WAIT}
    # The framework chooses by itself then, and the lease claims its choice.
    assert (result.decision.verdict, list(result.lease.claims)) == (Verdict.CANNOT_CHOOSE, [BUSY.uuid])
    assert leases(tmp_path).waiters == ()


def test_claim_is_sufficient_if_listed_first_and_no_more_gpus_are_named(acquired):
    asked = asking(gpu(0), gpu(1))
    taken = replace(acquired(asked), is_listed=True)
    assert is_sufficient(taken, asked, is_assigned=False)
    assert not is_sufficient(replace(taken, is_listed=False), asked, is_assigned=False)
    assert not is_sufficient(taken, replace(asked, wanted=replace(asked.wanted, named=2)), is_assigned=False)


def test_ticket_of_a_waiter_lists_the_gpus_that_it_could_use(acquired, tmp_path):
    told = []
    exclusive = gpu(1, compute_mode=ComputeMode.EXCLUSIVE_PROCESS, pids=[8], used_gib=1)
    prohibited = gpu(2, compute_mode=ComputeMode.PROHIBITED)
    large = gpu(3, total_gib=48, pids=[9], used_gib=30, busy=50)
    asked = asking(BUSY, exclusive, prohibited, large, count="all", per_user=2, **WAITS)
    with pytest.raises(GaveUp) as gave_up:
        acquired(asked, on_wait=lambda queue, decision: told.extend(leases(tmp_path).waiters))
    assert (gave_up.value.timeout_s, gave_up.value.position) == (0.0, 1)
    demand = told[0].demand
    assert (demand.count, demand.bytes_per_gpu, demand.joins, demand.per_user) == (2, None, False, 2)
    assert set(demand.uuids) == {BUSY.uuid, exclusive.uuid, large.uuid}


def test_job_waits_to_join_others_until_they_have_run_for_a_minute(acquired, other, tmp_path):
    other({0: 24})
    seen = []

    def waiting(queue, decision):
        seen.append((decision.verdict, queue.position, leases(tmp_path).waiters[0].demand.joins))
        let_age(tmp_path, 60)

    result = acquired(asking(gpu(0, used_gib=4)), on_wait=waiting)
    assert set(seen) == {(Verdict.WAIT, 1, True)}
    assert (dict(result.lease.claims), cap_bytes(result.decision)) == (bytes_on({0: 0}), bytes_on({0: 19.5}))
    assert leases(tmp_path).waiters == ()


def test_sharing_job_joins_others_at_the_end_of_its_wait(acquired, other, tmp_path):
    other({0: 24})
    waits = []

    def waiting(queue, decision):
        let_age(tmp_path, 0 if waits else 60)
        waits.append(queue.timeout_s)

    result = acquired(asking(FULL, wait_s=1.0), on_wait=waiting)
    assert (result.decision.verdict, dict(result.lease.claims), set(waits)) == (Verdict.TAKE, bytes_on({0: 0}), {1.0})
    assert result.decision.request.waited_s >= 1
    assert leases(tmp_path).waiters == ()


def test_child_process_of_a_job_does_not_wait_to_share_a_gpu(acquired, other, tmp_path):
    job = other({0: 24})
    below = acquired(beside(asking(gpu(0), gpu(1, pids=[9], used_gib=20)), job, 0), **child_of(tmp_path, "GPU-else"))
    assert below.decision.verdict is Verdict.TAKE


def test_waited_time_is_kept_if_the_lease_folder_breaks(acquired, tmp_path):
    waited_s, folder = [], tmp_path / "leases"
    folder.mkdir(mode=0o700)

    def on_wait(queue, decision):
        waited_s.append(queue.waited_s)
        if len(waited_s) == 2:
            raise Asked
        time.sleep(0.1)
        shutil.rmtree(str(folder))
        folder.write_text("no folder any more")

    with pytest.raises(Asked):
        acquired(asking(BUSY, busy="wait", wait_s=60.0), on_wait=on_wait, **{LEASE_DIR: str(folder)})
    assert waited_s[1] >= 0.1


@pytest.mark.parametrize(("used", "free"), [((), 1), ((2,), 1), ((1,), 2), ((1, 2), 0)])
def test_claimed_gpu_is_free_if_its_job_computes_only_on_another(acquired, other, used, free):
    job = other({2: 24})
    taken = acquired(beside(asking(gpu(0), gpu(1), gpu(2)), job, *used))
    assert taken.decision.claims == bytes_on({free: 24})


# Children of a job


@pytest.mark.parametrize(
    ("numbers", "held"),
    [
        pytest.param((0,), {0: 8}, id="parents-gpu"),
        pytest.param((1,), {1: 24}, id="another-gpu"),
        pytest.param((0, 1), TWO, id="parents-gpu-and-another"),
        pytest.param((0, 2), TWO, id="parents-gpu-and-the-last"),
    ],
)
def test_child_shares_its_parents_claim_if_it_names_only_that_gpu(acquired, other, tmp_path, numbers, held):
    job = other({0: 8}, script="launch.py")
    asked = asking(gpu(0), gpu(1), gpu(2), numbers=numbers)
    child = acquired(beside(asked, job, 0), **child_of(tmp_path))
    assert (child.decision.claims, child.is_parents) == (bytes_on(held), 0 in held)
    assert (child.decision.parent == ParentProcess("launch.py", job.pid)) == child.is_parents


def test_child_is_capped_by_the_fraction_granted_to_its_parent(acquired, other, tmp_path):
    result = acquired(asking(gpu(0), grant=HALF))
    (holder,) = leases(tmp_path).holders
    assert holder.caps == {gpu(0).uuid: result.decision.caps[gpu(0).uuid]} != {}
    result.lease.release()
    other({0: 12}, caps=holder.caps)
    # The child of a Ray worker can't ask Ray.
    member = acquired(asking(gpu(0)), **child_of(tmp_path))
    assert member.decision.reason is Reason.PARENT
    assert member.decision.caps == result.decision.caps
    assert [(cap.cause, cap.whose) for cap in caps(Policy(), member.decision).values()] == [(CapCause.GRANT, "Ray")]


def test_child_is_capped_by_the_unused_part_of_its_parents_fraction(acquired, other, tmp_path):
    parent = other({0: 12})
    device = gpu(0, pids=[parent.pid], used_gib=4)
    member = acquired(asking(device, grant=replace(HALF, job="Ray.7")), **child_of(tmp_path))
    assert member.decision.reason is Reason.PARENT
    assert member.decision.caps == {device.uuid: Cap(within_context(8 * GIB), CapCause.GRANT, "Ray")}
    brother = acquired(asking(device, grant=replace(HALF, job="Ray.7")), **child_of(tmp_path))
    assert brother.decision.caps == {device.uuid: Cap(within_context(4 * GIB), CapCause.GRANT, "Ray")}


def test_child_inherits_the_cause_of_its_parents_cap(acquired, other, tmp_path):
    full = gpu(0, pids=[7], used_gib=9, busy=90)
    result = acquired(asking(full, waited_s=1800))
    (holder,) = leases(tmp_path).holders
    result.lease.release()
    other({0: 0}, caps=holder.caps)
    member = acquired(asking(full), **child_of(tmp_path))
    assert [cap.cause for cap in caps(Policy(), member.decision).values()] == [CapCause.SHARED]


def test_lease_of_a_child_contains_the_caps_of_its_job(acquired, other, tmp_path):
    cap = Cap(5 * GIB, CapCause.SHARED)
    other({0: 0}, caps={gpu(0).uuid: cap})
    member = acquired(asking(gpu(0)), **child_of(tmp_path))
    (held,) = [holder for holder in leases(tmp_path).holders if holder.name == member.lease.name]
    assert held.caps == {gpu(0).uuid: cap}


def test_lease_of_a_rank_has_the_cap_of_its_slice(acquired, tmp_path):
    taken = acquired(asking(gpu(0), grant=replace(HALF, rank=LocalRank(1, 2, "torchrun")))).decision
    (holder,) = leases(tmp_path).holders
    (told,), (own,) = holder.caps.values(), caps(Policy(), taken).values()
    assert told == own
    assert told.bytes < within_context(12 * GIB)


def test_lease_contains_the_name_of_the_engines_job(acquired, tmp_path):
    acquired(asking(gpu(0), grant=replace(HALF, job="Ray.7")))
    (holder,) = leases(tmp_path).holders
    assert holder.engine_job == "Ray.7"


@pytest.mark.parametrize(
    ("rank", "gib"),
    [pytest.param(None, 12, id="alone"), pytest.param(LocalRank(1, 2, "torchrun"), 6, id="one-of-two-ranks")],
)
def test_child_with_its_own_grant_is_capped_by_that_grant(acquired, other, tmp_path, rank, gib):
    other({0: 24}, caps={gpu(0).uuid: Cap(20 * GIB, CapCause.SHARED)})
    member = acquired(asking(gpu(0), grant=replace(HALF, rank=rank)), **child_of(tmp_path)).decision
    assert cap_bytes(member) == {gpu(0).uuid: within_context(gib * GIB)}


@pytest.mark.parametrize("used", [(), (2,)], ids=["unused", "used"])
def test_program_shares_the_claimed_gpu_that_its_launcher_lists_for_it(acquired, other, tmp_path, used):
    job = other({2: 24})
    listed = {VISIBLE: "2", **child_of(tmp_path, "=GPU-1,GPU-2")}
    taken = acquired(beside(asking(gpu(2), busy="error"), job, *used), **listed)
    assert (taken.decision.claims, taken.decision.caps, taken.is_parents) == (bytes_on({2: 24}), {}, True)


@pytest.mark.parametrize("listed", [{}, {VISIBLE: "2,1"}], ids=["launchers-list", "own-list"])
@pytest.mark.parametrize("is_used", [False, True], ids=["launcher-computes-nothing", "launcher-computes"])
def test_child_does_not_wait_for_the_claim_of_a_launcher_above_it(acquired, other, tmp_path, listed, is_used):
    launcher = other({2: 24})
    marker = child_of(tmp_path)
    between = other({2: 24}, group=leases(tmp_path).holders[0].group)
    used = [2] if is_used else []
    below = acquired(beside(asking(gpu(1), gpu(2), **WAITS), launcher, *used), **marker, **listed)
    taken = bytes_on({1 if is_used and listed else 2: 24})
    assert (below.decision.claims, below.is_parents) == (taken, not listed)
    below.lease.release()
    ranks = acquired(beside(rank_of(0, gpu(1), gpu(2)), between), **marker, **listed)
    assert ranks.lease.claims == bytes_on(TWO)


# The GPU list that a job with two GPUs passes to its children, and the same GPUs in the opposite order.
ITS_LIST, REVERSED = "GPU-b,GPU-a", "GPU-a,GPU-b"
LISTS = {
    "jobs-list": {VISIBLE: ITS_LIST},
    "in-another-order": {VISIBLE: REVERSED, WRITTEN: REVERSED, ORIGINAL: ITS_LIST},
    "scripts-list": {VISIBLE: "0,1"},
}
UNKNOWN_LAUNCHER = {"grant": Grant(rank=LocalRank(1, 2, "torchrun"))}
BELOW: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "a rank": ({"grant": Grant(rank=LocalRank(1, 2, "torchrun", job=JOB["group"]))}, (1,)),
    "a rank of an unknown launcher": (UNKNOWN_LAUNCHER, (1,)),
    "a rank that names its GPU": ({**UNKNOWN_LAUNCHER, "chosen": (1,)}, (1,)),
    "a script": ({}, (0, 1)),
    "a script that names one GPU": ({"numbers": (0,)}, (0,)),
}


@pytest.mark.parametrize("listed", LISTS)
@pytest.mark.parametrize("is_asker_between", [False, True], ids=["child", "grandchild"])
def test_child_has_no_cap_if_its_job_holds_all_gpus_that_it_sees(acquired, other, tmp_path, listed, is_asker_between):
    other(TWO, script="hold")
    marker, (hold,) = child_of(tmp_path, f"={ITS_LIST}"), leases(tmp_path).holders
    if is_asker_between:
        other(TWO, group=hold.group, script="launch.py")
    for name, (asked, ordinals) in BELOW.items():
        below = acquired(asking(gpu(1), gpu(2), **WAITS, **asked), **marker, **LISTS[listed])
        claimed = [(gpu(1), gpu(2))[ordinal].uuid for ordinal in ordinals]
        assert [below.decision.claims[uuid] for uuid in claimed] == [24 * GIB] * len(claimed), name
        (group,) = [holder.group for holder in leases(tmp_path).holders if holder.name == below.lease.name]
        assert (below.decision.caps, group) == ({}, hold.group), name
        assert below.decision.ordinals in (ordinals, ()), name
        below.lease.release()


# Claims that fail


@contextlib.contextmanager
def full_disk():
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_claims_of_others_count_if_no_lease_can_be_written(acquired, other):
    other({0: 24})
    with full_disk():
        result = acquired(asking(gpu(0), gpu(1)))
        refused = acquired(asking(gpu(0), busy="error"))
    assert (refused.decision.verdict, refused.lease) == (Verdict.REFUSE, None)
    assert [device.index for device in result.decision.devices] == [1]
    assert (result.lease, result.is_unclaimed) == (None, True)
    assert result.problem.number == errno.EFBIG


def test_unexpected_error_in_the_leases_prevents_only_the_claim(acquired, other, monkeypatch):
    def broken(count):
        raise RuntimeError("no entropy")

    other({0: 24})
    monkeypatch.setattr(os, "urandom", broken)
    got = acquired(asking(gpu(0), gpu(1)))
    assert (got.decision.verdict, got.decision.ordinals) == (Verdict.TAKE, (1,))
    assert (got.lease, got.is_unclaimed) == (None, True)
    assert got.problem.fault is Fault.INTERNAL
    assert re.fullmatch(r"RuntimeError at \S+:\d+: no entropy", got.problem.error)


def test_child_does_not_wait_for_its_parent_if_no_lease_can_be_written(acquired, other, tmp_path):
    other({0: 8})
    with full_disk():
        result = acquired(asking(gpu(0), **WAITS), **child_of(tmp_path))
    assert result.decision.reason is Reason.PARENT
    assert (result.lease, result.is_parents, result.is_unclaimed) == (None, True, True)


@pytest.mark.slow  # the job waits for a second
def test_job_waits_even_if_no_lease_can_be_written(acquired, other):
    holder = other({0: 24})
    positions = []

    def on_wait(queue, decision):
        positions.append(queue.position)
        holder.end()

    with full_disk():
        with pytest.raises(GaveUp):
            acquired(asking(gpu(0), busy="wait", wait_s=0.1))
        result = acquired(asking(gpu(0), busy="wait", wait_s=1.0), on_wait=on_wait)
    assert (positions, result.decision.verdict, result.is_unclaimed) == ([1], Verdict.TAKE, True)
    assert result.decision.request.waited_s >= 1


def test_job_claims_and_reports_a_problem_if_flock_fails(acquired, other, no_mutex):
    other({0: 24})
    no_mutex()
    result = acquired(asking(gpu(0), gpu(1)))
    assert acquired(asking(gpu(0), busy="error")).decision.verdict is Verdict.REFUSE
    # A job that claims nothing does not need the lock.
    assert acquired(asking(gpu(0), busy="cpu")).problem is None
    assert list(result.lease.claims) == [gpu(1).uuid]
    assert (result.problem.number, result.is_unclaimed) == (errno.ENOLCK, False)
