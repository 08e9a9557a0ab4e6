"""Which GPUs a process takes, and the reason it is given."""

from __future__ import annotations

import pytest

from autogpu.decision import CONTEXT_BYTES, Question, Verdict, decide, limits, rules, set_aside, within_process
from autogpu.policy import MemoryLimit, Policy
from autogpu.pool import Frame
from autogpu.ranks import LocalRank
from autogpu.selection import GIB, Claim
from tests.values import gpu, inventory

NOBODY = Frame(None, "nobody")
INHERITED = Frame("0,1", "inherited")
BUSY = {"pids": [7], "used_gib": 9, "busy": 90}


def decided(*devices, policy=None, frame=NOBODY, visible=None, machine=None, leases=None, awaited=(), **asked):
    """The decision of a process that has ``visible`` (by default all devices in the order given)."""
    uuids = [device.uuid for device in (visible or devices)]
    values = {"gpu_count": len(uuids), "chosen": None, "own_pid": 1, "own_uid": 1000, **asked}
    question = Question(policy or Policy(), frame, machine or inventory(*devices), uuids, **values)
    return decide(question, leases, lambda uuid, is_free, room_bytes: uuid in awaited)


def test_one_gpu_the_idlest():
    decision = decided(gpu(0, **BUSY), gpu(1), gpu(2, busy=30))
    assert (decision.ordinals, decision.why) == ((1,), "the idlest of 3")


def test_ordinals_count_in_the_process_not_on_the_machine():
    first, second, third = gpu(0), gpu(1, **BUSY), gpu(2)
    assert decided(first, second, third, visible=[third, first, second]).ordinals == (0,)


@pytest.mark.parametrize(
    ("count", "ordinals", "why"),
    [
        (2, (1, 2), "the 2 idlest of 3"),
        ("all", (0, 1, 2), "all 3"),
        (3, (0, 1, 2), "all 3"),
        (5, (0, 1, 2), "all 3; select.count asks for 5, there are no more"),
        (0, (), "select.count is 0"),
    ],
)
def test_count(count, ordinals, why):
    decision = decided(gpu(0), gpu(1), gpu(2), policy=Policy(count=count))
    assert (decision.ordinals, decision.why) == (ordinals, why)


def test_a_shared_gpu_is_said_to_be_shared():
    assert decided(gpu(0, **BUSY), gpu(1, pids=[8], used_gib=20)).why == (
        "the least busy of 2 (shared: pid 7 computes on it, 90 % busy, 15.0 of 24.0 GiB free); "
        "capped at half of what is free, select.need would claim what the job needs"
    )


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (INHERITED, "the idlest of 2 in CUDA_VISIBLE_DEVICES"),
        (Frame("0,1", "script"), "the idlest of 2 in the script's CUDA_VISIBLE_DEVICES"),
    ],
)
def test_the_reason_names_the_frame(frame, why):
    assert decided(gpu(0), gpu(1), frame=frame).why == why


def test_whoever_named_a_busy_gpu_hears_of_an_idle_one():
    machine = inventory(gpu(0, **BUSY), gpu(1), gpu(2))
    decision = decided(gpu(0, **BUSY), frame=Frame("0", "script"), machine=machine)
    assert decision.why == (
        "the only one in the script's CUDA_VISIBLE_DEVICES (shared: pid 7 computes on it, 90 % busy, "
        "15.0 of 24.0 GiB free), busy while GPU 1 and GPU 2 are idle; "
        "capped at half of what is free, select.need would claim what the job needs"
    )


def test_what_the_script_made_visible_is_its_own_choice():
    decision = decided(gpu(0), gpu(1, **BUSY), chosen=[1], policy=Policy(count=0))
    assert (decision.verdict, decision.why) == (Verdict.LEAVE, "chosen by the script, busy while GPU 0 is idle")


def test_the_users_list_wins_over_exclude_unless_that_is_locked():
    policy = Policy(exclude=("0",))
    assert rules(policy, NOBODY, 1).exclude == ("0",)
    assert rules(policy, INHERITED, 1).exclude == ()
    assert rules(Policy(exclude=("0",), locked=frozenset({"select.exclude"})), INHERITED, 1).exclude == ("0",)


def test_a_policy_that_excludes_every_gpu_means_cpu():
    decision = decided(gpu(0), policy=Policy(exclude=("0",)))
    assert (decision.verdict, decision.why) == (Verdict.CPU, "no GPU will do (GPU 0: excluded by select.exclude)")


def test_gpus_that_cannot_be_taken_mean_cpu():
    assert decided(gpu(0, compute_mode="prohibited")).verdict is Verdict.CPU


@pytest.mark.parametrize(
    ("machine", "gpu_count", "why"),
    [
        (
            inventory(failure="NVML says: Driver/library version mismatch"),
            1,
            "NVML says: Driver/library version mismatch",
        ),
        (
            inventory(gpu(0, mig_enabled=True)),
            1,
            "a GPU is split into MIG instances, which autogpu does not choose among",
        ),
        (inventory(gpu(0)), 2, "the CUDA driver and the framework count different GPUs"),
    ],
    ids=["no-readings", "mig", "different-counts"],
)
def test_an_obstacle_leaves_the_choice_to_the_framework(machine, gpu_count, why):
    decision = decided(gpu(0), machine=machine, gpu_count=gpu_count)
    assert (decision.verdict, decision.why) == (Verdict.LEAVE, why)


def test_no_answer_in_time_leaves_the_choice_to_the_framework():
    decision = decide(Question(Policy(), NOBODY, None, ["GPU-a"], 1, None, 1, 1000))
    assert (decision.verdict, decision.why) == (Verdict.LEAVE, "the driver has not answered in time")


ME, BOB = 1000, 1001


def claim(gib, *, pid=7, uid=BOB, age_s=1.0):
    return Claim(int(gib * GIB), (pid,), uid, "train.py", age_s)


def taken_by(*pairs):
    return {gpu(index).uuid: list(claims) for index, *claims in pairs}


@pytest.mark.parametrize(
    ("busy", "verdict"),
    [
        ("share", Verdict.TAKE),
        ("share-own", Verdict.CPU),
        ("wait", Verdict.WAIT),
        ("cpu", Verdict.CPU),
        ("error", Verdict.REFUSE),
    ],
)
def test_when_every_gpu_is_claimed(busy, verdict):
    decision = decided(gpu(0), policy=Policy(busy=busy), leases=taken_by((0, claim(24))))
    assert decision.verdict is verdict
    if verdict is not Verdict.TAKE:
        assert decision.why == "no GPU is free (GPU 0: claimed by train.py (pid 7), 0 % busy, 24.0 of 24.0 GiB free)"


@pytest.mark.parametrize(
    ("busy", "verdict"),
    [("share", Verdict.CPU), ("wait", Verdict.CPU), ("cpu", Verdict.CPU), ("error", Verdict.REFUSE)],
)
def test_nobody_waits_for_a_gpu_that_can_never_hold_the_need(busy, verdict):
    decision = decided(gpu(0), policy=Policy(busy=busy, need_bytes=30 * GIB))
    assert (decision.verdict, decision.why) == (
        verdict,
        "no GPU will do (GPU 0: 30.0 GiB do not fit, it has 24.0 GiB)",
    )


def test_a_gpu_that_is_too_small_is_not_waited_for_beside_one_that_is_not():
    small, large = gpu(0, total_gib=8), gpu(1)
    policy = Policy(busy="wait", need_bytes=12 * GIB, count=2)
    assert decided(small, large, policy=policy).ordinals == (1,)
    assert decided(small, large, policy=policy, leases=taken_by((1, claim(24)))).verdict is Verdict.WAIT


@pytest.mark.parametrize("busy", ["share", "share-own", "wait", "cpu", "error"])
def test_a_forgotten_notebooks_gpu_is_shared_whatever_the_policy(busy):
    forgotten = claim(24, age_s=7200.0)
    decision = decided(gpu(0, pids=[7], used_gib=20), policy=Policy(busy=busy), leases=taken_by((0, forgotten)))
    assert (decision.verdict, decision.ordinals) == (Verdict.TAKE, (0,))
    assert decision.claims == {gpu(0).uuid: 0}


def test_share_own_goes_beside_my_own_jobs_only():
    policy = Policy(busy="share-own")
    leases = taken_by((0, claim(24, uid=BOB)), (1, claim(24, uid=ME)))
    assert decided(gpu(0), gpu(1), policy=policy, leases=leases).ordinals == (1,)
    strangers = gpu(0, pids=[99], used_gib=3)
    assert decided(strangers, policy=policy, leases=taken_by((0, claim(24, uid=ME)))).verdict is Verdict.CPU


def test_a_guest_is_capped_at_half_of_what_is_free_and_says_so():
    decision = decided(gpu(0, pids=[7], used_gib=4), leases=taken_by((0, claim(24))))
    assert decision.caps == {0: 10 * GIB}
    assert decision.why.endswith("; capped at half of what is free, select.need would claim what the job needs")


@pytest.mark.parametrize(
    ("policy", "caps", "claims"),
    [
        (Policy(), {}, 24),
        (Policy(need_bytes=6 * GIB), {}, 6),
        (Policy(limit=MemoryLimit(bytes=4 * GIB)), {0: 4}, 4.5),
        (Policy(limit=MemoryLimit(percent=25.0)), {0: 6}, 6.5),
        (Policy(limit=MemoryLimit(bytes=4 * GIB), limit_includes="process"), {0: 3.5}, 4),
    ],
    ids=["nothing-said", "need", "limit", "share-of-the-gpu", "limit-of-the-process"],
)
def test_what_is_capped_and_what_is_claimed(policy, caps, claims):
    decision = decided(gpu(0), policy=policy)
    assert {ordinal: cap / GIB for ordinal, cap in decision.caps.items()} == caps
    assert decision.claims == {gpu(0).uuid: claims * GIB}


SPLIT = {"virtual_gpus": 2}


@pytest.mark.parametrize(
    ("policy", "cap", "claims"),
    [
        (Policy(**SPLIT, limit=MemoryLimit(bytes=4 * GIB)), 4 * GIB, 8.5),
        (Policy(**SPLIT, limit=MemoryLimit(percent=25.0)), 6 * GIB, 12.5),
        (Policy(**SPLIT, limit=MemoryLimit(bytes=4 * GIB), limit_includes="process"), 3.75 * GIB, 8),
        (Policy(**SPLIT, limit=MemoryLimit(bytes=20 * GIB)), 12 * GIB, 24),
        (Policy(**SPLIT, limit=MemoryLimit(bytes=4 * GIB), need_bytes=6 * GIB), 4 * GIB, 6),
        (Policy(**SPLIT), int(23.5 * GIB * 0.94) // 2, 24),
    ],
    ids=["limit", "share-of-the-gpu", "limit-of-the-process", "more-than-the-gpu-has", "need", "nothing-said"],
)
def test_a_split_gpu_is_claimed_once_for_all_its_parts(policy, cap, claims):
    decision = decided(gpu(0), policy=policy)
    assert decision.caps == {0: cap}
    assert decision.claims == {gpu(0).uuid: claims * GIB}


def test_the_parts_of_a_guest_share_its_half():
    decision = decided(gpu(0, pids=[7], used_gib=4), policy=Policy(**SPLIT), leases=taken_by((0, claim(24))))
    assert decision.caps == {0: 5 * GIB}


def test_a_limit_holds_on_every_gpu_that_the_process_has():
    policy = Policy(limit=MemoryLimit(bytes=GIB))
    decision = decided(gpu(0), gpu(1), policy=policy)
    assert (decision.caps, limits(policy, decision)) == ({1: GIB}, {0: GIB, 1: GIB})
    guest = decided(gpu(0, pids=[7], used_gib=4), leases=taken_by((0, claim(24))))
    assert limits(Policy(), guest) == guest.caps


def test_what_is_set_aside_is_what_a_context_was_seen_to_take_and_some_for_libraries():
    mib = GIB >> 10
    assert [set_aside(size) for size in (None, 200 * mib, 700 * mib)] == [512 * mib, 512 * mib, 956 * mib]
    policy = Policy(limit=MemoryLimit(bytes=4 * GIB), limit_includes="process")
    caps = decided(gpu(0), policy=policy).caps
    assert within_process(policy, caps, {0: 956 * mib}) == {0: 4 * GIB - 956 * mib}
    assert within_process(policy, caps, {}) == caps


def test_the_gpu_on_which_the_process_has_a_context_stays_its_gpu():
    devices = (gpu(0, **BUSY), gpu(1), gpu(2))
    assert decided(*devices, in_use=[1]).ordinals == (1,)
    assert decided(*devices, in_use=[1]).why == "1 of 3, for another library of this process computes there"
    assert decided(*devices, in_use=[0]).why == (
        "1 of 3, for another library of this process computes there (shared: pid 7 computes on it, 90 % busy, 15.0 of "
        "24.0 GiB free), busy while GPU 1 and GPU 2 are idle; capped at half of what is free, select.need would claim "
        "what the job needs"
    )
    assert decided(*devices, in_use=[0], policy=Policy(count=2)).ordinals == (0, 2)


def test_jobs_that_do_not_wait_leave_a_free_gpu_to_those_who_do():
    awaited = {gpu(0).uuid}
    assert decided(gpu(0), policy=Policy(busy="cpu"), awaited=awaited).verdict is Verdict.CPU
    assert decided(gpu(0), policy=Policy(busy="wait"), awaited=awaited).verdict is Verdict.WAIT
    assert decided(gpu(0), gpu(1), policy=Policy(busy="cpu"), awaited=awaited).ordinals == (1,)
    sized = Policy(need_bytes=GIB)
    assert decided(gpu(0), policy=sized, awaited=awaited).verdict is Verdict.CPU
    guest = decided(gpu(0), awaited=awaited)
    assert (guest.ordinals, guest.claims, guest.caps) == ((0,), {gpu(0).uuid: 0}, {0: 12 * GIB})


def test_who_waits_for_several_gpus_does_not_go_on_with_fewer():
    policy = Policy(count=2, busy="wait")
    assert decided(gpu(0), gpu(1), policy=policy, leases=taken_by((0, claim(24)))).verdict is Verdict.WAIT
    assert decided(gpu(0), policy=policy).ordinals == (0,), "a machine with one GPU has no second to wait for"


def test_nobody_waits_for_more_than_the_cap_per_user_allows():
    policy = Policy(per_user=1, count=2, busy="wait")
    assert decided(gpu(0), gpu(1), policy=policy).ordinals == (1,)
    leases = taken_by((0, claim(24, uid=ME)))
    assert decided(gpu(0), gpu(1), policy=policy, leases=leases).verdict is Verdict.WAIT


def test_a_cap_per_user_holds():
    leases = taken_by((0, claim(24, uid=ME)))
    assert decided(gpu(0), gpu(1), gpu(2), policy=Policy(per_user=1), leases=leases).why == (
        "you hold as many GPUs as limits.per_user allows, 1"
    )
    decision = decided(gpu(0), gpu(1), gpu(2), policy=Policy(per_user=2, count=2), leases=leases)
    assert (decision.ordinals, decision.why.split("; ")[-1]) == (
        (2,),
        "select.count asks for 2, limits.per_user allows 2",
    )


def test_an_explicit_choice_is_leased_with_what_nobody_was_promised():
    decision = decided(gpu(0), chosen=[0], leases=taken_by((0, claim(20))))
    assert decision.claims == {gpu(0).uuid: 4 * GIB}


@pytest.mark.parametrize(
    ("rank", "size", "ordinals", "claimed_gib"),
    [(0, 2, (0,), 24), (1, 2, (2,), 24), (3, 4, (3,), 24), (0, 8, (0,), 12), (7, 8, (3,), 12)],
)
def test_ranks_take_their_slice_in_the_pools_order(rank, size, ordinals, claimed_gib):
    devices = [gpu(0, **BUSY), gpu(1), gpu(2), gpu(3)]
    decision = decided(*devices, rank=LocalRank(rank, size, "MPICH"))
    assert decision.ordinals == ordinals
    assert list(decision.claims.values()) == [claimed_gib * GIB]


def test_ranks_that_share_a_gpu_are_capped_within_their_claim():
    decision = decided(gpu(0), rank=LocalRank(1, 2, "MPICH"))
    assert decision.caps == {0: 12 * GIB - CONTEXT_BYTES}
    assert decision.why == "local rank 1 of 2 (MPICH), 2 ranks share each GPU"


def test_ranks_never_wait():
    leases = taken_by((0, claim(24)))
    decision = decided(gpu(0), policy=Policy(busy="wait"), rank=LocalRank(0, 2, "MPICH"), leases=leases)
    assert (decision.verdict, decision.claims) == (Verdict.TAKE, {gpu(0).uuid: 0})


def test_more_gpus_are_attainable_while_the_rule_of_the_house_allows_them():
    two_free = [gpu(0), gpu(1), gpu(2, total_gib=8)]
    assert decided(*two_free).attainable == 3
    assert decided(*two_free, policy=Policy(need_bytes=12 * GIB)).attainable == 2
    mine = taken_by((0, claim(24, uid=ME)))
    assert decided(*two_free, policy=Policy(per_user=2), leases=mine).attainable == 1


def test_the_gpus_are_named_idlest_first():
    decision = decided(gpu(0, used_gib=0.9), gpu(1), policy=Policy(count=2))
    assert decision.ordinals == (0, 1)
    assert [device.index for device in decision.devices] == [1, 0]


def test_a_rank_attains_what_its_slice_has():
    devices = [gpu(index) for index in range(4)]
    assert decided(*devices, rank=LocalRank(0, 2, "MPICH")).attainable == 2
    assert decided(*devices, rank=LocalRank(0, 4, "MPICH")).attainable == 1
