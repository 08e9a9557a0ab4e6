"""Which GPUs a process takes, and the reason it is given."""

from __future__ import annotations

import pytest

from autogpu.policy import Policy
from autogpu.reporting.text import GIB
from autogpu.selection.decide import decide
from autogpu.selection.explain import BEST_EFFORT
from autogpu.selection.grants import Grant
from autogpu.selection.memory import CONTEXT_BYTES, caps
from autogpu.selection.model import SelectionRequest, Verdict, VisibleSpec
from autogpu.selection.ranks import WORKERS, LocalRank
from tests.support.selections import BOB, INHERITED, ME, UNSET, claim, claimed, decided
from tests.support.values import gpu, inventory

BUSY = {"pids": [7], "used_gib": 9, "busy": 90}


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
        "the least busy of 2 (shared: pid 7 on it without a claim, 90 % busy, 15.0 of 24.0 GiB free)"
    )


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (INHERITED, "the idlest of 2 in CUDA_VISIBLE_DEVICES"),
        (VisibleSpec("0,1", "script"), "the idlest of 2 in the script's CUDA_VISIBLE_DEVICES"),
    ],
)
def test_the_reason_names_the_source_of_the_pool(spec, why):
    assert decided(gpu(0), gpu(1), spec=spec).why == why


def test_a_user_who_named_a_busy_gpu_is_told_of_an_idle_one():
    machine = inventory(gpu(0, **BUSY), gpu(1), gpu(2))
    decision = decided(gpu(0, **BUSY), spec=VisibleSpec("0", "script"), machine=machine)
    assert decision.why == (
        "the only one in the script's CUDA_VISIBLE_DEVICES (shared: pid 7 on it without a claim, 90 % busy, "
        "15.0 of 24.0 GiB free), busy while GPU 1 and GPU 2 are idle"
    )
    assert decision.remedy == "to have the idlest instead: AUTOGPU_SCRIPT=override"


def test_what_the_script_made_visible_is_its_own_choice():
    decision = decided(gpu(0), gpu(1, **BUSY), chosen=[1], policy=Policy(count=0))
    assert decision.verdict is Verdict.NOT_OUR_CHOICE
    assert decision.why == "chosen by the script, busy while GPU 0 is idle"


def test_a_policy_that_excludes_every_gpu_means_cpu():
    decision = decided(gpu(0), policy=Policy(exclude=("0",)))
    assert (decision.verdict, decision.why) == (Verdict.CPU, "no GPU is suitable (GPU 0: excluded by select.exclude)")


@pytest.mark.parametrize(
    ("busy", "verdict"),
    [("share", Verdict.CPU), ("cpu", Verdict.CPU), ("wait", Verdict.CPU), ("error", Verdict.REFUSE)],
)
def test_a_pool_that_the_policy_empties_is_for_busy_to_judge(busy, verdict):
    assert decided(gpu(0), policy=Policy(devices=("A100",), busy=busy)).verdict is verdict


@pytest.mark.parametrize(
    ("busy", "verdict", "count", "why"),
    [
        ("share", Verdict.TAKE, 3, "all 3 (shared: GPU 0: "),
        ("share-own", Verdict.TAKE, 2, "the 2 idlest of 3; select.count asks for 3, 2 can be had now"),
        ("cpu", Verdict.TAKE, 2, "the 2 idlest of 3; select.count asks for 3, 2 can be had now"),
        ("error", Verdict.TAKE, 2, "the 2 idlest of 3; select.count asks for 3, 2 can be had now"),
        ("wait", Verdict.WAIT, 0, "3 GPUs wanted, 2 are free: waiting for 1 more"),
    ],
)
def test_more_gpus_than_are_free(busy, verdict, count, why):
    decision = decided(gpu(0, **BUSY), gpu(1), gpu(2), policy=Policy(count=3, busy=busy), count_is_set=True)
    assert (decision.verdict, len(decision.ordinals)) == (verdict, count)
    assert decision.why.startswith(why)


def test_all_that_fit_are_waited_for_with_a_need_too():
    policy = Policy(count="all", need_bytes=20 * GIB, busy="wait")
    assert decided(gpu(0), gpu(1), policy=policy, claims_on=claimed((0, claim(10)))).verdict is Verdict.WAIT


def test_gpus_that_cannot_be_taken_mean_cpu():
    assert decided(gpu(0, compute_mode="prohibited")).verdict is Verdict.CPU


@pytest.mark.parametrize(
    ("machine", "gpu_count", "why"),
    [
        (
            inventory(failure="NVML reports: Driver/library version mismatch"),
            1,
            "NVML reports: Driver/library version mismatch",
        ),
        (inventory(gpu(0)), 2, "the CUDA driver and the framework count different GPUs"),
    ],
    ids=["no-readings", "different-counts"],
)
def test_an_obstacle_leaves_the_choice_to_the_framework(machine, gpu_count, why):
    decision = decided(gpu(0), machine=machine, gpu_count=gpu_count)
    assert (decision.verdict, decision.why) == (Verdict.CANNOT_CHOOSE, why)


def test_no_answer_in_time_leaves_the_choice_to_the_framework():
    decision = decide(SelectionRequest(Policy(), UNSET, None, ["GPU-a"], 1, own_uid=1000))
    assert (decision.verdict, decision.why) == (Verdict.CANNOT_CHOOSE, "NVML timed out")


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
    decision = decided(gpu(0), policy=Policy(busy=busy), claims_on=claimed((0, claim(24))))
    assert decision.verdict is verdict
    if verdict is not Verdict.TAKE:
        assert decision.why == "no GPU is free (GPU 0: claimed by train.py (pid 7), 0 % busy, 24.0 of 24.0 GiB free)"


@pytest.mark.parametrize(
    ("busy", "verdict"),
    [("share", Verdict.CPU), ("wait", Verdict.CPU), ("cpu", Verdict.CPU), ("error", Verdict.REFUSE)],
)
def test_no_job_waits_for_a_gpu_that_can_never_hold_the_need(busy, verdict):
    decision = decided(gpu(0), policy=Policy(busy=busy, need_bytes=30 * GIB))
    assert (decision.verdict, decision.why) == (
        verdict,
        "no GPU is suitable (GPU 0: 30.0 GiB do not fit, it has 24.0 GiB)",
    )


def test_a_gpu_that_is_too_small_is_not_waited_for_beside_one_that_is_not():
    small, large = gpu(0, total_gib=8), gpu(1)
    policy = Policy(busy="wait", need_bytes=12 * GIB, count=2)
    assert decided(small, large, policy=policy).ordinals == (1,)
    assert decided(small, large, policy=policy, claims_on=claimed((1, claim(24)))).verdict is Verdict.WAIT


@pytest.mark.parametrize("busy", ["share", "share-own", "wait", "cpu", "error"])
def test_the_gpu_of_an_idle_lease_is_shared_whatever_the_policy(busy):
    idle = claim(24, age_s=7200.0)
    decision = decided(gpu(0, pids=[7], used_gib=20), policy=Policy(busy=busy), claims_on=claimed((0, idle)))
    assert (decision.verdict, decision.ordinals) == (Verdict.TAKE, (0,))
    assert decision.claims == {gpu(0).uuid: 0}


def test_share_own_goes_beside_my_own_jobs_only():
    policy = Policy(busy="share-own")
    leases = claimed((0, claim(24, uid=BOB)), (1, claim(24, uid=ME)))
    assert decided(gpu(0), gpu(1), policy=policy, claims_on=leases).ordinals == (1,)
    unmanaged = gpu(0, pids=[99], used_gib=3)
    assert decided(unmanaged, policy=policy, claims_on=claimed((0, claim(24, uid=ME)))).verdict is Verdict.CPU


def test_a_best_effort_job_is_capped_at_half_of_what_is_free_and_says_so():
    decision = decided(gpu(0, pids=[7], used_gib=4), claims_on=claimed((0, claim(24))))
    assert decision.shares == caps(Policy(), decision) == {0: 10 * GIB}
    assert decision.cap == BEST_EFFORT


def test_what_others_were_promised_is_not_there_for_a_best_effort_job():
    decision = decided(gpu(0, pids=[7], used_gib=2), claims_on=claimed((0, claim(14, pid=7))))
    assert decision.shares == {0: 5 * GIB}, "half of the 10 GiB that are neither used nor promised"


def test_best_effort_jobs_go_where_the_most_is_not_promised_and_then_where_the_fewest_are():
    devices = [gpu(0, total_gib=11), gpu(1, total_gib=11)]
    leases = claimed((0, claim(4)), (1, claim(11)))
    assert decided(*devices, claims_on=leases).ordinals == (0,), "although nothing is allocated on either"
    leases = claimed((0, claim(11)), (1, claim(11), claim(0, pid=8)))
    assert decided(*devices, claims_on=leases).ordinals == (0,)


def test_the_gpu_on_which_the_process_has_a_context_stays_its_gpu():
    devices = (gpu(0, **BUSY), gpu(1), gpu(2))
    assert decided(*devices, in_use=[1]).ordinals == (1,)
    assert decided(*devices, in_use=[1]).why == "1 of 3, where another library of this process has a CUDA context"
    assert decided(*devices, in_use=[0]).why == (
        "1 of 3, where another library of this process has a CUDA context (shared: pid 7 on it without a claim, "
        "90 % busy, 15.0 of 24.0 GiB free), busy while GPU 1 and GPU 2 are idle"
    )
    assert decided(*devices, in_use=[0], policy=Policy(count=2)).ordinals == (0, 2)


def test_jobs_that_do_not_wait_leave_a_free_gpu_to_those_that_do():
    awaited = {gpu(0).uuid}
    assert decided(gpu(0), policy=Policy(busy="cpu"), awaited=awaited).verdict is Verdict.CPU
    assert decided(gpu(0), policy=Policy(busy="wait"), awaited=awaited).verdict is Verdict.WAIT
    assert decided(gpu(0), gpu(1), policy=Policy(busy="cpu"), awaited=awaited).ordinals == (1,)
    sized = Policy(need_bytes=GIB)
    assert decided(gpu(0), policy=sized, awaited=awaited).verdict is Verdict.CPU
    shared = decided(gpu(0), awaited=awaited)
    assert (shared.ordinals, shared.claims, shared.shares) == ((0,), {gpu(0).uuid: 0}, {0: 12 * GIB})


def test_a_job_that_waits_for_several_gpus_does_not_go_on_with_fewer():
    policy = Policy(count=2, busy="wait")
    assert decided(gpu(0), gpu(1), policy=policy, claims_on=claimed((0, claim(24)))).verdict is Verdict.WAIT
    assert decided(gpu(0), policy=policy).ordinals == (0,), "a machine with one GPU has no second to wait for"


def test_no_job_waits_for_more_than_the_cap_per_user_allows():
    policy = Policy(per_user=1, count=2, busy="wait")
    assert decided(gpu(0), gpu(1), policy=policy).ordinals == (1,)
    leases = claimed((0, claim(24, uid=ME)))
    assert decided(gpu(0), gpu(1), policy=policy, claims_on=leases).verdict is Verdict.WAIT
    policy = Policy(per_user=2, count=2, busy="wait")
    assert decided(gpu(0), gpu(1), gpu(2), policy=policy, claims_on=leases).ordinals == (2,), "one more is allowed"


def test_a_cap_per_user_holds():
    leases = claimed((0, claim(24, uid=ME)))
    policy = Policy(per_user=1, busy="cpu")
    assert decided(gpu(0), gpu(1), gpu(2), policy=policy, claims_on=leases).why == (
        "you hold 1 GPU, the most that limits.per_user allows"
    )
    decision = decided(gpu(0), gpu(1), gpu(2), policy=Policy(per_user=2, count=2), claims_on=leases)
    assert (decision.ordinals, decision.why.split("; ")[-1]) == (
        (2,),
        "select.count asks for 2, limits.per_user allows 2",
    )


@pytest.mark.parametrize(
    ("policy", "best_effort"),
    [
        (Policy(per_user=1), True),
        (Policy(per_user=1, busy="share-own"), True),
        (Policy(per_user=1, need_bytes=GIB), False),
    ],
)
def test_one_more_job_on_a_gpu_of_ones_own_takes_no_further_one(policy, best_effort):
    decision = decided(gpu(0), gpu(1), policy=policy, claims_on=claimed((0, claim(4, uid=ME))))
    assert (decision.ordinals, bool(decision.shares)) == ((0,), best_effort)


def test_an_explicit_choice_is_leased_with_what_is_promised_to_no_other_job():
    decision = decided(gpu(0), chosen=[0], claims_on=claimed((0, claim(20))))
    assert decision.claims == {gpu(0).uuid: 4 * GIB}


@pytest.mark.parametrize(
    ("rank", "size", "ordinals", "claimed_gib"),
    [(0, 2, (0,), 24), (1, 2, (2,), 24), (3, 4, (3,), 24), (0, 8, (0,), 12), (7, 8, (3,), 12)],
)
def test_ranks_take_their_slice_in_the_pools_order(rank, size, ordinals, claimed_gib):
    devices = [gpu(0, **BUSY), gpu(1), gpu(2), gpu(3)]
    decision = decided(*devices, grant=Grant(rank=LocalRank(rank, size, "MPICH")))
    assert decision.ordinals == ordinals
    assert list(decision.claims.values()) == [claimed_gib * GIB]


def test_ranks_that_share_a_gpu_are_capped_within_their_claim():
    decision = decided(gpu(0), grant=Grant(rank=LocalRank(1, 2, "MPICH")))
    assert decision.shares == caps(Policy(), decision) == {0: 12 * GIB - CONTEXT_BYTES}
    assert decision.why == "local rank 1 of 2 (MPICH), 2 ranks share it"


@pytest.mark.parametrize("is_taken", [True, False])
def test_beside_others_what_the_process_has_allocated_already_is_of_its_own_share(is_taken):
    # By the first look at its context it has 13 GiB of the 24.
    there = gpu(0, pids=[1], used_gib=13)
    decision = decided(there, chosen=[0], in_use=[0], is_taken=is_taken, own_pid=1, claims_on=claimed((0, claim(24))))
    assert decision.shares == ({0: 12 * GIB} if is_taken else {})
    assert dict(decision.claims) == {there.uuid: 0}


def test_workers_that_share_a_gpu_are_not_held_to_equal_parts():
    decision = decided(gpu(0), grant=Grant(rank=LocalRank(1, 2, WORKERS)))
    assert (decision.shares, dict(decision.claims)) == ({}, {gpu(0).uuid: 24 * GIB})


def test_a_rank_by_itself_takes_its_slice_whatever_else_runs_there():
    leases = claimed((0, claim(24)))
    decision = decided(gpu(0), policy=Policy(busy="wait"), grant=Grant(rank=LocalRank(0, 2, "MPICH")), claims_on=leases)
    assert (decision.verdict, decision.claims) == (Verdict.TAKE, {gpu(0).uuid: 0})


def test_more_gpus_are_attainable_while_the_cap_per_user_allows_them():
    two_free = [gpu(0), gpu(1), gpu(2, total_gib=8)]
    assert decided(*two_free).attainable == 3
    assert decided(*two_free, policy=Policy(need_bytes=12 * GIB)).attainable == 2
    mine = claimed((0, claim(24, uid=ME)))
    assert decided(*two_free, policy=Policy(per_user=2), claims_on=mine).attainable == 1


def test_the_gpus_are_named_idlest_first():
    decision = decided(gpu(0, used_gib=0.9), gpu(1), policy=Policy(count=2))
    assert decision.ordinals == (0, 1)
    assert [device.index for device in decision.devices] == [1, 0]


def test_a_rank_attains_what_its_slice_has():
    devices = [gpu(index) for index in range(4)]
    assert decided(*devices, grant=Grant(rank=LocalRank(0, 2, "MPICH"))).attainable == 2
    assert decided(*devices, grant=Grant(rank=LocalRank(0, 4, "MPICH"))).attainable == 1
