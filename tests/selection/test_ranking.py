"""Which GPU is best, and why not the others."""

from __future__ import annotations

import pytest

from autogpu.policy import Policy
from autogpu.reporting.text import GIB
from autogpu.selection.model import Cause, MemoryDemand, Rejection, SelectionRules
from autogpu.selection.ranking import matches, rank, rules_for
from tests.support.selections import INHERITED, UNSET, claim
from tests.support.values import gpu

ANYTHING = SelectionRules()


def order(*devices, rules=ANYTHING):
    return [candidate.device.index for candidate in rank(devices, rules).candidates]


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        pytest.param([gpu(0), gpu(1, pids=[7], used_gib=2)], [0, 1], id="a-process-makes-busy"),
        pytest.param(
            [gpu(0, total_gib=80, used_gib=10, pids=[7], busy=90), gpu(1, total_gib=8)],
            [1, 0],
            id="an-idle-small-gpu-beats-a-busy-big-one",
        ),
        pytest.param([gpu(0, total_gib=24), gpu(1, total_gib=11)], [0, 1], id="more-room-first"),
        pytest.param([gpu(0, busy=3), gpu(1, busy=0)], [1, 0], id="less-utilization-first"),
        pytest.param([gpu(0), gpu(1), gpu(2)], [2, 1, 0], id="tie-goes-to-the-highest-index"),
        pytest.param(
            [gpu(0, used_gib=0.3, busy=0), gpu(1, used_gib=0.2, busy=40)],
            [0, 1],
            id="a-few-mib-do-not-outweigh-utilization",
        ),
        pytest.param([gpu(0), gpu(1, total_gib=None)], [0, 1], id="unknown-memory-is-last-in-its-tier"),
        pytest.param([gpu(0, busy=40), gpu(1, busy=None)], [0, 1], id="unknown-utilization-is-last-in-its-tier"),
        pytest.param([gpu(0, pids=[7], used_gib=1), gpu(1, busy=None)], [1, 0], id="unknown-but-free-beats-busy"),
        pytest.param(
            [gpu(0, pids=[7], used_gib=20), gpu(1, pids=[8], used_gib=4)],
            [1, 0],
            id="among-busy-the-roomiest",
        ),
    ],
)
def test_order(devices, expected):
    assert order(*devices) == expected


@pytest.mark.parametrize(
    ("device", "rules", "why", "cause"),
    [
        (gpu(3), SelectionRules(devices=("0-2",)), "not among select.devices", Cause.EXCLUDED_BY_POLICY),
        (gpu(3), SelectionRules(exclude=("3",)), "excluded by select.exclude", Cause.EXCLUDED_BY_POLICY),
        (gpu(mig_enabled=True), ANYTHING, "in MIG mode, and has no instance here", Cause.UNSUITABLE),
        (gpu(compute_mode="prohibited"), ANYTHING, "its compute mode is PROHIBITED", Cause.UNSUITABLE),
        (
            gpu(compute_mode="exclusive_process", pids=[7], used_gib=0.1),
            ANYTHING,
            "its compute mode is EXCLUSIVE and a process has it",
            Cause.IN_USE,
        ),
    ],
    ids=["not-listed", "excluded", "mig", "prohibited", "exclusive-and-taken"],
)
def test_rejected_with_the_reason(device, rules, why, cause):
    assert rank([device], rules).rejected == (Rejection(device, why, cause),)


def test_an_exclusive_gpu_without_a_process_may_be_taken():
    assert order(gpu(compute_mode="exclusive_process")) == [0]


def test_every_gpu_appears_once():
    ranking = rank([gpu(0), gpu(1), gpu(2)], SelectionRules(exclude=("1",)))
    assert sorted([c.device.index for c in ranking.candidates] + [r.device.index for r in ranking.rejected]) == [
        0,
        1,
        2,
    ]


@pytest.mark.parametrize(
    ("entry", "indices"),
    [
        ("2", [2]),
        ("10", [10]),
        ("1-2", [1, 2]),
        ("GPU-0000000a", [10]),
        ("gpu-0000000A", [10]),
        ("*titan*", [0, 1, 2, 10]),
        ("NVIDIA TITAN RTX", [0, 1, 2, 10]),
        ("TITAN", []),
        ("*A100*", []),
        ("", []),
    ],
)
def test_entries(entry, indices):
    assert [i for i in (0, 1, 2, 10) if matches(gpu(i), [entry])] == indices


def test_small_jobs_share_while_the_sum_of_claims_fits():
    rules = SelectionRules(demand=MemoryDemand(bytes=8 * GIB))
    two, three = [claim(8, pid=1), claim(8, pid=2)], [claim(8, pid=1), claim(8, pid=2), claim(8, pid=3)]
    assert rank([gpu()], rules, {gpu().uuid: two}).candidates[0].claim_bytes == 8 * GIB
    (rejection,) = rank([gpu()], rules, {gpu().uuid: three}).rejected
    assert rejection.why == "8.0 GiB do not fit, 0 MiB are neither used nor claimed"


def test_a_job_of_unknown_size_is_best_effort_beside_others_and_is_promised_nothing():
    ranking = rank([gpu(0), gpu(1)], ANYTHING, {gpu(1).uuid: [claim(24)]})
    first, second = ranking.candidates
    assert (first.device.index, first.is_best_effort, first.claim_bytes) == (0, False, 24 * GIB)
    assert (second.device.index, second.is_best_effort, second.claim_bytes) == (1, True, 0)


def test_a_need_above_what_the_gpu_has_never_fits():
    (rejection,) = rank([gpu()], SelectionRules(demand=MemoryDemand(bytes=30 * GIB))).rejected
    assert (rejection.why, rejection.cause) == ("30.0 GiB do not fit, it has 24.0 GiB", Cause.UNSUITABLE)


@pytest.mark.parametrize("amount", [{"bytes": 30 * GIB}, {"percent": 100}], ids=["bytes", "percent"])
def test_a_limit_of_all_takes_a_free_gpu_though_a_desktop_keeps_some(amount):
    (candidate,) = rank([gpu(used_gib=0.5)], SelectionRules(demand=MemoryDemand(is_limit=True, **amount))).candidates
    assert candidate.claim_bytes == 24 * GIB


def test_a_limit_does_not_fit_beside_a_claim_on_the_rest():
    rules = SelectionRules(demand=MemoryDemand(bytes=30 * GIB, is_limit=True))
    (rejection,) = rank([gpu()], rules, {gpu().uuid: [claim(1)]}).rejected
    assert (rejection.why, rejection.cause) == (
        "24.0 GiB do not fit, 23.0 GiB are neither used nor claimed",
        Cause.IN_USE,
    )


def test_an_exclusive_gpu_that_is_claimed_is_taken():
    device = gpu(compute_mode="exclusive_process")
    assert rank([device], ANYTHING, {device.uuid: [claim(1)]}).candidates == ()


def test_the_users_list_overrides_exclude_unless_that_is_locked():
    policy = Policy(exclude=("0",))
    assert rules_for(policy, UNSET, 1).exclude == ("0",)
    assert rules_for(policy, INHERITED, 1).exclude == ()
    assert rules_for(Policy(exclude=("0",), locked=frozenset({"select.exclude"})), INHERITED, 1).exclude == ("0",)
