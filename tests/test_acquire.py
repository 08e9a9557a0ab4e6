"""How a process acquires GPUs, and what it tells the others then."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import subprocess
import sys

import pytest

from autogpu import lease
from autogpu.acquire import acquire, script_name
from autogpu.devices.model import Inventory
from autogpu.errors import NoEligibleDevice, WaitTimeout
from autogpu.lease import mutex
from autogpu.policy import Policy
from autogpu.reporting.text import GIB
from autogpu.selection.grants import Grant
from autogpu.selection.model import SelectionRequest, Verdict, VisibleSpec
from autogpu.selection.ranks import LocalRank
from autogpu.variables import CUDA_VISIBLE_DEVICES, LEASE, LEASE_DIR
from tests.lease.conftest import needs_root
from tests.support.holders import other_job
from tests.support.values import gpu, inventory

BUSY = gpu(0, pids=[7], used_gib=20, busy=90)


def request(*devices, **fields):
    policy = {name: fields.pop(name) for name in ("busy", "wait_s", "need", "per_user", "count") if name in fields}
    uuids = [device.uuid for device in devices]
    values = {"gpu_count": len(uuids), "own_pid": 1, "own_uid": os.getuid(), **fields}
    return SelectionRequest(Policy(**policy), VisibleSpec(None, "unset"), inventory(*devices), uuids, **values)


def acquired(folder, asked, *, read=lambda: None, on_wait=lambda queue, decision: None, **environ):
    return acquire(asked, {LEASE_DIR: str(folder), **environ}, "train.py", read, on_wait)


def waiters(folder):
    return lease.snapshot(lease.find_folder({LEASE_DIR: str(folder)})).waiters


@pytest.fixture
def parent(tmp_path):
    """The environment of the children of a job that holds 8 GiB of GPU 0."""
    environ = {LEASE_DIR: str(tmp_path)}
    with other_job(environ, {gpu(0).uuid: 8 * GIB}, script="launch.py"):
        (holder,) = lease.snapshot(lease.find_folder(environ)).holders
        yield {LEASE: f"v1:{holder.name}:{holder.pid}:{holder.start_time}:"}


@pytest.mark.parametrize(
    ("argv", "executable", "expected"),
    [
        (["/home/me/train.py", "--key", "secret"], "/opt/bin/python3.11", "train.py"),
        (["-c"], "/opt/bin/python3.11", "python3.11"),
        (["-m"], "/opt/bin/python3.11", "python3.11"),
        ([""], "/opt/bin/python3.11", "python3.11"),
        ([], "", "python"),
        ([], None, "python"),
    ],
)
def test_only_the_scripts_name_is_told(monkeypatch, argv, executable, expected):
    monkeypatch.setattr(sys, "executable", executable)
    assert script_name(argv) == expected


def test_a_wait_ends_when_there_is_nothing_to_wait_for_any_more(tmp_path):
    lost = []
    result = acquired(
        tmp_path,
        request(BUSY, busy="wait", wait_s=60.0),
        read=lambda: Inventory(failure="NVML reports: GPU is lost", failure_cause="driver"),
        on_wait=lambda queue, decision: lost.append(decision.verdict),
    )
    assert set(lost) == {Verdict.WAIT}
    assert (result.decision.verdict, result.lease) == (Verdict.CANNOT_CHOOSE, None)
    assert waiters(tmp_path) == ()


def test_a_waiter_tells_the_others_what_it_could_use(tmp_path):
    told = []
    asked = request(
        BUSY,
        gpu(1, compute_mode="exclusive-process", pids=[8], used_gib=1),
        gpu(2, compute_mode="prohibited"),
        gpu(3, total_gib=48, pids=[9], used_gib=30, busy=50),
        busy="wait",
        wait_s=0.0,
        count="all",
        per_user=2,
    )
    with pytest.raises(Exception, match="no GPU came free"):
        acquired(tmp_path, asked, on_wait=lambda queue, decision: told.extend(waiters(tmp_path)))
    demand = told[0].demand
    assert (demand.count, demand.bytes_per_gpu) == (2, None)
    assert set(demand.uuids) == {BUSY.uuid, gpu(1).uuid, gpu(3).uuid}


def test_a_child_whose_script_names_its_parents_gpu_is_of_the_parents_job(tmp_path, parent):
    child = acquired(tmp_path, request(gpu(0), gpu(1), chosen=(0,), chosen_by_position=True), **parent)
    assert (child.decision.ordinals, dict(child.decision.claims)) == ((0,), {gpu(0).uuid: 8 * GIB})
    assert "shared with its parent process" in child.decision.why
    child.lease.release()


@pytest.mark.parametrize("positions", [(1,), (0, 1), (0, 2)])
def test_a_child_whose_script_names_another_gpu_is_a_job_of_its_own(tmp_path, parent, positions):
    child = acquired(tmp_path, request(gpu(0), gpu(1), gpu(2), chosen=positions, chosen_by_position=True), **parent)
    assert gpu(0).uuid not in child.decision.claims
    assert len(child.decision.claims) == len(positions)
    child.lease.release()


# Ranks of one job


def rank_of(place, *devices, size=2, job="launcher.7.1", **fields):
    rank = LocalRank(place, size, "Open MPI", job=job)
    return request(*devices, **{"busy": "wait", "wait_s": 0.0, "grant": Grant(rank=rank), **fields})


def test_a_child_may_take_no_more_than_the_part_that_was_granted_to_its_parent(tmp_path):
    environ = {LEASE_DIR: str(tmp_path)}
    asked = request(gpu(0), grant=Grant("Ray", fraction=0.5))
    result = acquired(tmp_path, asked)
    (holder,) = lease.snapshot(lease.find_folder(environ)).holders
    assert holder.caps == {gpu(0).uuid: result.decision.granted[0]} != {}
    result.lease.release()
    with other_job(environ, result.lease.claims, caps=holder.caps):
        (parent,) = lease.snapshot(lease.find_folder(environ)).holders
        marker = {LEASE: f"v1:{parent.name}:{parent.pid}:{parent.start_time}:"}
        # The child of a Ray worker can't ask Ray.
        member = acquired(tmp_path, request(gpu(0)), **marker)
    assert "shared with its parent process" in member.decision.why
    assert member.decision.granted == result.decision.granted
    member.lease.release()


@pytest.mark.parametrize("busy", ["wait", "share", "error", "cpu"])
def test_ranks_are_promised_the_idlest_gpus_together(tmp_path, busy):
    idle = [gpu(1), gpu(2)]
    first = acquired(tmp_path, rank_of(0, BUSY, *idle, busy=busy))
    # The second has not come yet, and its GPU is kept for it.
    assert set(first.lease.claims) == first.reserved == {device.uuid for device in idle}
    assert (first.decision.ordinals, dict(first.decision.claims)) == ((1,), {gpu(1).uuid: 24 * GIB})
    first.lease.release()


def test_what_a_rank_holds_for_all_is_theirs_alone(tmp_path):
    idle = [gpu(1), gpu(2)]
    claims = {device.uuid: 24 * GIB for device in idle}
    with other_job({LEASE_DIR: str(tmp_path)}, claims, group="launcher.7.1"):
        with pytest.raises(WaitTimeout):
            acquired(tmp_path, rank_of(0, BUSY, *idle, job="launcher.8.1"))
        second = acquired(tmp_path, rank_of(1, BUSY, *idle))
    assert (second.decision.ordinals, dict(second.decision.claims)) == ((2,), {gpu(2).uuid: 24 * GIB})
    # The one that came first may end first.
    assert (second.lease.claims, second.reserved) == (claims, frozenset(claims))
    second.lease.release()


def test_what_ranks_were_promised_is_kept_when_the_first_of_them_ends(tmp_path):
    devices = [gpu(0), gpu(1)]
    claims = {device.uuid: 24 * GIB for device in devices}
    with other_job({LEASE_DIR: str(tmp_path)}, claims, group="launcher.7.1"):
        second = acquired(tmp_path, rank_of(1, *devices))
        second.lease.release()
    with other_job({LEASE_DIR: str(tmp_path)}, second.lease.claims, group="launcher.7.1"):
        with pytest.raises(WaitTimeout):
            acquired(tmp_path, rank_of(0, *devices, job="launcher.8.1"))
        again = acquired(tmp_path, rank_of(0, *devices))
    assert dict(again.decision.claims) == {gpu(0).uuid: 24 * GIB}
    again.lease.release()


@pytest.mark.parametrize(("others_gib", "is_capped"), [(24, True), (8, True), (0, False)])
def test_a_rank_that_comes_after_another_job_was_promised_its_gpu_is_capped_there(tmp_path, others_gib, is_capped):
    devices = [gpu(0), gpu(1)]
    rank = LocalRank(1, 2, "Open MPI")  # of which no launcher is known, so that it goes by itself
    with other_job({LEASE_DIR: str(tmp_path)}, {gpu(1).uuid: others_gib * GIB}):
        late = acquired(tmp_path, request(*devices, grant=Grant(rank=rank)))
        granted = acquired(tmp_path, request(*devices, grant=Grant("Slurm", rank=rank)))
    assert (late.decision.ordinals, bool(late.decision.cap), 1 in late.decision.shares) == ((1,), is_capped, is_capped)
    assert late.decision.claims == {gpu(1).uuid: 0 if is_capped else 24 * GIB}
    assert (granted.decision.cap, granted.decision.shares) == ("", {}), "a scheduler's word"
    for result in (late, granted):
        result.lease.release()


def test_ranks_with_another_list_choose_for_themselves(tmp_path):
    with other_job({LEASE_DIR: str(tmp_path)}, {gpu(0).uuid: 24 * GIB}, group="launcher.7.1"):
        third = acquired(tmp_path, rank_of(0, gpu(2), gpu(3)))
    assert third.reserved == {gpu(2).uuid, gpu(3).uuid}
    third.lease.release()


def test_a_child_of_a_rank_has_its_gpu(tmp_path):
    claims = {gpu(1).uuid: 24 * GIB, gpu(2).uuid: 24 * GIB}
    with other_job({LEASE_DIR: str(tmp_path)}, claims, group="launcher.7.1"):
        (holder,) = lease.snapshot(lease.find_folder({LEASE_DIR: str(tmp_path)})).holders
        marker = {LEASE: f"v1:{holder.name}:{holder.pid}:{holder.start_time}:"}
        child = acquired(tmp_path, rank_of(0, BUSY, gpu(1), gpu(2)), **marker)
    assert child.decision.ordinals == (1,)
    child.lease.release()


def test_ranks_under_a_hold_have_a_part_of_it_each(tmp_path):
    with other_job({LEASE_DIR: str(tmp_path)}, {gpu(1).uuid: 24 * GIB, gpu(2).uuid: 24 * GIB}):
        (holder,) = lease.snapshot(lease.find_folder({LEASE_DIR: str(tmp_path)})).holders
        marker = {LEASE: f"v1:{holder.name}:{holder.pid}:{holder.start_time}:"}
        second = acquired(tmp_path, rank_of(1, gpu(1), gpu(2)), **marker)
    assert (second.decision.ordinals, second.reserved) == ((1,), frozenset())
    second.lease.release()


def marker_of(folder, visible=""):
    """What the oldest job leaves to its children."""
    holder, *_ = lease.snapshot(lease.find_folder({LEASE_DIR: str(folder)})).holders
    return {LEASE: f"v1:{holder.name}:{holder.pid}:{holder.start_time}:{visible}"}


# Below a job that holds two GPUs, with the list that it left and with one that was made since.
HELD = {gpu(1).uuid: 24 * GIB, gpu(2).uuid: 24 * GIB}
LISTS = {
    "its-list": {"CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a"},
    "in-another-order": {
        "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b",
        "AUTOGPU_ORIG_WRITTEN": "GPU-a,GPU-b",
        "AUTOGPU_ORIG_CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a",
    },
    "by-the-script": {"CUDA_VISIBLE_DEVICES": "0,1"},
}
BELOW = {
    "a-rank": ({"grant": Grant(rank=LocalRank(1, 2, "torchrun", job="launcher.7.1"))}, (1,)),
    "a-rank-of-an-unknown-launcher": ({"grant": Grant(rank=LocalRank(1, 2, "torchrun"))}, (1,)),
    "a-rank-that-names-its-gpu": ({"grant": Grant(rank=LocalRank(1, 2, "torchrun")), "chosen": (1,)}, (1,)),
    "a-script": ({}, (0, 1)),
    "a-script-that-names-one": ({"chosen": (0,), "chosen_by_position": True}, (0,)),
}


@pytest.mark.parametrize("listed", LISTS)
@pytest.mark.parametrize("below", BELOW)
@pytest.mark.parametrize("is_asker_between", [False, True], ids=["directly", "below-one-that-has-only-asked"])
def test_what_runs_below_a_job_that_holds_all_that_it_sees_has_that_without_a_cap(
    tmp_path, listed, below, is_asker_between
):
    fields, ordinals = BELOW[below]
    with contextlib.ExitStack() as jobs:
        jobs.enter_context(other_job({LEASE_DIR: str(tmp_path)}, HELD, script="hold"))
        (hold,) = lease.snapshot(lease.find_folder({LEASE_DIR: str(tmp_path)})).holders
        asked = {"group": hold.group, "script": "launch.py", "is_unused": True}
        if is_asker_between:
            jobs.enter_context(other_job({LEASE_DIR: str(tmp_path)}, HELD, **asked))
        marker = marker_of(tmp_path, "=GPU-b,GPU-a")
        below = acquired(
            tmp_path, request(gpu(1), gpu(2), busy="wait", wait_s=0.0, **fields), **marker, **LISTS[listed]
        )
    claimed = {device.uuid: 24 * GIB for ordinal, device in enumerate([gpu(1), gpu(2)]) if ordinal in ordinals}
    assert {uuid: below.decision.claims[uuid] for uuid in claimed} == claimed
    assert (below.decision.shares, below.decision.cap, below.lease.group) == ({}, "", hold.group)
    assert below.decision.ordinals in (ordinals, ()), below.decision
    below.lease.release()


def test_more_ranks_than_a_job_holds_gpus_share_them(tmp_path):
    with other_job({LEASE_DIR: str(tmp_path)}, {gpu(1).uuid: 24 * GIB}):
        rank = acquired(tmp_path, rank_of(1, gpu(1)), **marker_of(tmp_path))
    assert dict(rank.decision.claims) == {gpu(1).uuid: 12 * GIB}
    assert "2 ranks share it" in rank.decision.why
    rank.lease.release()


def test_ranks_below_a_job_that_shares_its_gpu_are_capped_as_it_is(tmp_path):
    with other_job({LEASE_DIR: str(tmp_path)}, {gpu(1).uuid: 0, gpu(2).uuid: 24 * GIB}):
        rank = acquired(tmp_path, rank_of(0, gpu(1, used_gib=4), gpu(2)), **marker_of(tmp_path))
    assert (dict(rank.decision.claims), rank.decision.shares) == ({gpu(1).uuid: 0}, {0: 10 * GIB})
    rank.lease.release()


@pytest.mark.parametrize("listed", [{}, {"CUDA_VISIBLE_DEVICES": "2"}], ids=["its-list", "another"])
def test_no_one_waits_for_a_launcher_above_that_has_only_asked_for_a_gpu(tmp_path, listed):
    environ = {LEASE_DIR: str(tmp_path)}
    with other_job(environ, {gpu(2).uuid: 24 * GIB}, is_unused=True):
        (top,) = lease.snapshot(lease.find_folder(environ)).holders
        with other_job(environ, {gpu(2).uuid: 24 * GIB}, group=top.group, is_unused=True):
            below = acquired(tmp_path, request(gpu(2), busy="wait", wait_s=0.0), **marker_of(tmp_path), **listed)
            ranks = acquired(tmp_path, rank_of(0, gpu(1), gpu(2)), **marker_of(tmp_path), **listed)
    assert below.decision.claims == {gpu(2).uuid: 24 * GIB}
    assert ranks.reserved == {gpu(1).uuid, gpu(2).uuid} or listed == {}
    for result in (below, ranks):
        result.lease.release()


def test_ranks_that_can_not_all_have_a_gpu_hold_none_while_they_wait(tmp_path):
    seen = []
    with pytest.raises(WaitTimeout):
        acquired(tmp_path, rank_of(0, BUSY, gpu(1)), on_wait=lambda queue, decision: seen.append((queue, decision)))
    assert [decision.verdict for _, decision in seen] == [Verdict.WAIT]
    assert lease.snapshot(lease.find_folder({LEASE_DIR: str(tmp_path)})).holders == ()
    assert seen[0][1].why.startswith("2 GPUs wanted, 1 is free")


@pytest.mark.parametrize("busy", ["cpu", "error"])
def test_ranks_follow_what_the_policy_says_of_busy_gpus(tmp_path, busy):
    asked = rank_of(0, BUSY, gpu(1, pids=[8], used_gib=20, busy=90), busy=busy)
    if busy == "error":
        with pytest.raises(NoEligibleDevice):
            acquired(tmp_path, asked)
    else:
        assert acquired(tmp_path, asked).decision.verdict is Verdict.CPU
    assert lease.snapshot(lease.find_folder({LEASE_DIR: str(tmp_path)})).holders == ()


def test_the_ranks_of_a_parent_with_a_gpu_choose_idle_ones(tmp_path):
    with other_job({LEASE_DIR: str(tmp_path)}, {gpu(2).uuid: 24 * GIB}):
        (holder,) = lease.snapshot(lease.find_folder({LEASE_DIR: str(tmp_path)})).holders
        marker = {LEASE: f"v1:{holder.name}:{holder.pid}:{holder.start_time}:"}
        first = acquired(tmp_path, rank_of(0, BUSY, gpu(1), gpu(2), gpu(3)), **marker)
    assert first.reserved == {gpu(1).uuid, gpu(3).uuid}
    first.lease.release()


def test_ranks_disregard_a_launcher_that_has_only_asked_for_a_gpu(tmp_path):
    with other_job({LEASE_DIR: str(tmp_path)}, {gpu(2).uuid: 24 * GIB}, is_unused=True):
        (holder,) = lease.snapshot(lease.find_folder({LEASE_DIR: str(tmp_path)})).holders
        marker = {LEASE: f"v1:{holder.name}:{holder.pid}:{holder.start_time}:"}
        first = acquired(tmp_path, rank_of(0, BUSY, gpu(1), gpu(2)), **marker)
        with pytest.raises(WaitTimeout):
            acquired(tmp_path, request(gpu(2), busy="wait", wait_s=0.0))
    assert first.reserved == {gpu(1).uuid, gpu(2).uuid}
    first.lease.release()


@pytest.mark.parametrize("is_used", [True, False])
def test_what_a_child_uses_without_a_word_is_its_parents_jobs(tmp_path, parent, is_used):
    asked = request(gpu(0), gpu(1), chosen=(0, 1), in_use=(0, 1) if is_used else (), is_taken=True)
    taken = acquired(tmp_path, asked, **parent)
    groups = {holder.group for holder in lease.snapshot(lease.find_folder({LEASE_DIR: str(tmp_path)})).holders}
    assert len(groups) == (1 if is_used else 2)
    assert dict(taken.decision.claims) == {gpu(0).uuid: (24 if is_used else 0) * GIB, gpu(1).uuid: 24 * GIB}
    assert bool(taken.decision.shares) != is_used
    taken.lease.release()


@pytest.mark.parametrize("is_unused", [True, False])
def test_a_program_has_the_gpu_that_its_launcher_gave_it_by_a_list_of_its_own(tmp_path, is_unused):
    """As a member of its launcher's job, where that computes there; by itself where it has only asked."""
    marker = {LEASE: "v1:{0.name}:{0.pid}:{0.start_time}:=GPU-1,GPU-2", CUDA_VISIBLE_DEVICES: "2"}
    with other_job({LEASE_DIR: str(tmp_path)}, {gpu(2).uuid: 24 * GIB}, is_unused=is_unused):
        (holder,) = lease.snapshot(lease.find_folder({LEASE_DIR: str(tmp_path)})).holders
        marker[LEASE] = marker[LEASE].format(holder)
        taken = acquired(tmp_path, request(gpu(2), busy="error"), **marker)
        assert (dict(taken.decision.claims), taken.decision.shares) == ({gpu(2).uuid: 24 * GIB}, {})
        assert taken.is_parents != is_unused
        taken.lease.release()


@pytest.mark.parametrize(
    "fields",
    [
        {"grant": Grant("Slurm", rank=LocalRank(0, 2, "Slurm", job="launcher.7.1"))},
        {"grant": Grant(rank=LocalRank(0, 2, "Open MPI", place=0, sharers=1, job="launcher.7.1"))},
        {"grant": Grant(rank=LocalRank(0, 2, "Open MPI"))},
    ],
    ids=["granted by an engine", "with its own GPUs", "launcher unknown"],
)
def test_other_ranks_go_by_themselves(tmp_path, fields):
    result = acquired(tmp_path, request(BUSY, gpu(1), busy="wait", wait_s=0.0, **fields))
    assert (result.decision.verdict, result.reserved) == (Verdict.TAKE, frozenset())
    result.lease.release()


@contextlib.contextmanager
def no_file_can_be_written():
    """As on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_where_nothing_can_be_claimed_what_others_claim_counts(tmp_path):
    with other_job({LEASE_DIR: str(tmp_path)}, {gpu(0).uuid: 24 * GIB}), no_file_can_be_written():
        result = acquired(tmp_path, request(gpu(0), gpu(1)))
        with pytest.raises(NoEligibleDevice):
            acquired(tmp_path, request(gpu(0), busy="error"))
    assert [device.index for device in result.decision.devices] == [1]
    assert (result.lease, result.is_unclaimed) == (None, True)
    assert "File too large" in result.problem.what


def test_where_nothing_can_be_claimed_a_child_does_not_wait_for_its_parent(tmp_path, parent):
    with no_file_can_be_written():
        result = acquired(tmp_path, request(gpu(0), busy="wait", wait_s=0.0), **parent)
    assert "shared with its parent process" in result.decision.why
    assert (result.lease, result.is_parents, result.is_unclaimed) == (None, True, True)


def test_where_nothing_can_be_claimed_one_waits_nevertheless(tmp_path):
    positions = []

    def on_wait(queue, decision):
        positions.append(queue.position)
        other.end()

    with other_job({LEASE_DIR: str(tmp_path)}, {gpu(0).uuid: 24 * GIB}) as other, no_file_can_be_written():
        with pytest.raises(WaitTimeout):
            acquired(tmp_path, request(gpu(0), busy="wait", wait_s=0.1))
        result = acquired(tmp_path, request(gpu(0), busy="wait", wait_s=60.0), on_wait=on_wait)
    assert (positions, result.decision.verdict, result.is_unclaimed) == ([1], Verdict.TAKE, True)


@pytest.mark.parametrize("unwritable", [False, True])
def test_what_is_said_after_a_wait_tells_how_long_it_was(tmp_path, unwritable):
    def on_wait(queue, decision):
        if queue.waited_s >= 1:
            other.end()

    limit = no_file_can_be_written() if unwritable else contextlib.nullcontext()
    with other_job({LEASE_DIR: str(tmp_path)}, {gpu(0).uuid: 24 * GIB}) as other, limit:
        result = acquired(tmp_path, request(gpu(0), busy="wait", wait_s=60.0), on_wait=on_wait)
    assert re.fullmatch(r".*, after [0-9]+ s of waiting", result.decision.why)


def test_a_queue_that_breaks_makes_no_one_wait_for_longer(tmp_path):
    folder = tmp_path / "leases"
    folder.mkdir(mode=0o700)
    waited_s = []

    def on_wait(queue, decision):
        waited_s.append(queue.waited_s)
        if len(waited_s) == 2:
            shutil.rmtree(str(folder))
            folder.write_text("no folder any more")

    with pytest.raises(WaitTimeout):
        acquired(folder, request(BUSY, busy="wait", wait_s=4.0), on_wait=on_wait)
    assert len(waited_s) > 2
    assert waited_s == sorted(waited_s)


def test_a_lock_that_is_kept_costs_a_problem_and_no_claim(tmp_path):
    folder = lease.find_folder({LEASE_DIR: str(tmp_path)})
    with other_job({LEASE_DIR: str(tmp_path)}, {gpu(0).uuid: 24 * GIB}), mutex.held(folder):
        result = acquired(tmp_path, request(gpu(0), gpu(1)))
        with pytest.raises(NoEligibleDevice):
            acquired(tmp_path, request(gpu(0), busy="error"))
    assert list(result.lease.claims) == [gpu(1).uuid]
    assert ("has been held for 2 s" in result.problem.what, result.is_unclaimed) == (True, False)
    result.lease.release()


@needs_root
def test_a_claim_whose_caps_can_not_be_written_stands(tmp_path):
    # Room for the mutex and one file: an update needs a second one.
    mount = ["mount", "-t", "tmpfs", "-o", "nr_inodes=3,mode=1777", "none", str(tmp_path)]
    done = subprocess.run(mount, capture_output=True, timeout=10, check=False)
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted: {done.stderr.decode().strip()}")
    try:
        (tmp_path / "mutex").touch()
        result = acquired(tmp_path, request(gpu(0), grant=Grant("Ray", fraction=0.5)))
        assert (result.is_unclaimed, list(result.lease.claims)) == (False, [gpu(0).uuid])
        assert "No space left on device" in result.problem.what
        result.lease.release()
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], timeout=10, check=True)
