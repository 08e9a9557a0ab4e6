"""Which GPU is best, and why not the others."""

from __future__ import annotations

import pytest

from autogpu.selection import (
    GIB,
    Cause,
    Claim,
    Rejection,
    SelectionRules,
    Size,
    Tier,
    describe,
    matches,
    rank,
    room_bytes,
    tier,
)
from tests.values import gpu

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
    ("device", "expected"),
    [
        pytest.param(gpu(), Tier.FREE, id="nothing-on-it"),
        pytest.param(gpu(used_gib=0.9, total_gib=8), Tier.FREE, id="a-desktop-under-a-gib"),
        pytest.param(gpu(used_gib=3.5, total_gib=80), Tier.FREE, id="a-desktop-under-five-percent"),
        pytest.param(gpu(used_gib=1.1, total_gib=8), Tier.BUSY, id="hidden-processes-hold-memory"),
        pytest.param(gpu(busy=50, compute_processes=None), Tier.BUSY, id="hidden-processes-work"),
        pytest.param(gpu(busy=49), Tier.FREE, id="a-desktop-draws"),
        pytest.param(gpu(pids=[7], used_gib=0.1), Tier.BUSY, id="one-small-process"),
        pytest.param(gpu(compute_processes=None, used_gib=0), Tier.FREE, id="processes-unreadable-memory-empty"),
        pytest.param(gpu(total_gib=None, used_gib=None), Tier.FREE, id="memory-unreadable-no-process"),
    ],
)
def test_tier(device, expected):
    assert tier(device) is expected


def test_own_memory_does_not_make_a_gpu_busy():
    mine = gpu(pids=[42], used_gib=5)
    assert tier(mine, own_pid=42) is Tier.FREE
    assert tier(mine, own_pid=43) is Tier.BUSY


@pytest.mark.parametrize(
    ("device", "rules", "why", "cause"),
    [
        (gpu(3), SelectionRules(devices=("0-2",)), "not among select.devices", Cause.POLICY),
        (gpu(3), SelectionRules(exclude=("3",)), "excluded by select.exclude", Cause.POLICY),
        (gpu(mig_enabled=True), ANYTHING, "split into MIG instances", Cause.DEVICE),
        (gpu(compute_mode="prohibited"), ANYTHING, "its compute mode is PROHIBITED", Cause.DEVICE),
        (
            gpu(compute_mode="exclusive_process", pids=[7], used_gib=0.1),
            ANYTHING,
            "its compute mode is EXCLUSIVE and a process has it",
            Cause.USE,
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


def test_description_names_processes_utilization_and_memory():
    device = gpu(pids=[7, 8, 9, 10], used_gib=4, busy=93)
    assert describe(device) == "pids 7, 8, 9 and 1 more compute on it, 93 % busy, 20.0 of 24.0 GiB free"
    assert describe(gpu(total_gib=None, busy=None)) == "utilization unknown, memory unknown"


HOUR = 3600.0


def claim(gib, *, pid=7, age_s=1.0, script="train.py", uid=1000):
    return Claim(int(gib * GIB), (pid,), uid, script, age_s)


def test_a_claimed_gpu_is_busy_before_its_holder_has_allocated_anything():
    assert tier(gpu(), claims=[claim(24)]) is Tier.BUSY


@pytest.mark.parametrize(
    ("device", "age_s", "expected"),
    [
        pytest.param(gpu(pids=[7], used_gib=20), HOUR, Tier.FORGOTTEN, id="the-forgotten-notebook"),
        pytest.param(gpu(pids=[7], used_gib=20), 1700.0, Tier.BUSY, id="not-half-an-hour-yet"),
        pytest.param(gpu(pids=[7], used_gib=20, busy=1), HOUR, Tier.BUSY, id="it-does-something"),
        pytest.param(gpu(pids=[7], used_gib=20, busy=None), HOUR, Tier.BUSY, id="nobody-knows-whether"),
        pytest.param(gpu(pids=[7, 9], used_gib=20), HOUR, Tier.BUSY, id="somebody-else-is-there-too"),
    ],
)
def test_the_forgotten_notebook_ranks_between_free_and_busy(device, age_s, expected):
    assert tier(device, claims=[claim(24, age_s=age_s)]) is expected


@pytest.mark.parametrize(
    ("device", "claims", "expected_gib"),
    [
        pytest.param(gpu(), [], 24, id="empty"),
        pytest.param(gpu(), [claim(6)], 18, id="promised-and-not-yet-used"),
        pytest.param(gpu(pids=[7], used_gib=4), [claim(6)], 18, id="used-within-the-claim-counts-once"),
        pytest.param(gpu(pids=[7], used_gib=9), [claim(6)], 15, id="used-beyond-the-claim"),
        pytest.param(gpu(pids=[8], used_gib=9), [claim(6)], 9, id="a-foreign-process-counts-by-use"),
        pytest.param(gpu(used_gib=9, compute_processes=None), [claim(6)], 9, id="unknown-users-count-beside-claims"),
        pytest.param(gpu(pids=[7], used_gib=9), [claim(24, age_s=HOUR)], 15, id="a-forgotten-claim-counts-by-use"),
        pytest.param(gpu(pids=[42], used_gib=9), [], 24, id="my-own-use-is-room"),
    ],
)
def test_room(device, claims, expected_gib):
    assert room_bytes(device, 42, claims) == expected_gib * GIB


def test_small_jobs_share_while_the_sum_of_claims_fits():
    rules = SelectionRules(size=Size(bytes=8 * GIB))
    two, three = [claim(8, pid=1), claim(8, pid=2)], [claim(8, pid=1), claim(8, pid=2), claim(8, pid=3)]
    assert rank([gpu()], rules, {gpu().uuid: two}).candidates[0].claim_bytes == 8 * GIB
    (rejection,) = rank([gpu()], rules, {gpu().uuid: three}).rejected
    assert rejection.why == "8.0 GiB do not fit, 0.0 GiB are neither used nor claimed"


def test_a_job_of_unknown_size_is_a_guest_beside_others_and_is_promised_nothing():
    ranking = rank([gpu(0), gpu(1)], ANYTHING, {gpu(1).uuid: [claim(24)]})
    first, second = ranking.candidates
    assert (first.device.index, first.is_guest, first.claim_bytes) == (0, False, 24 * GIB)
    assert (second.device.index, second.is_guest, second.claim_bytes) == (1, True, 0)


@pytest.mark.parametrize(
    ("size", "expected_gib"),
    [
        (Size(), 24),
        (Size(bytes=6 * GIB), 6),
        (Size(bytes=60 * GIB), 60),
        (Size(bytes=60 * GIB, is_limit=True), 24),
        (Size(percent=50), 12),
        (Size(percent=50, context_bytes=GIB), 13),
        (Size(percent=100, context_bytes=GIB, is_limit=True), 24),
        (Size(bytes=8 * GIB, context_bytes=GIB), 9),
    ],
)
def test_a_size_in_bytes_and_only_a_limit_stops_at_all_of_the_gpu(size, expected_gib):
    assert size.on(gpu()) == expected_gib * GIB


def test_a_need_above_what_the_gpu_has_never_fits():
    (rejection,) = rank([gpu()], SelectionRules(size=Size(bytes=30 * GIB))).rejected
    assert (rejection.why, rejection.cause) == ("30.0 GiB do not fit, it has 24.0 GiB", Cause.DEVICE)


@pytest.mark.parametrize("size", [Size(bytes=30 * GIB, is_limit=True), Size(percent=100, is_limit=True)])
def test_a_limit_of_all_takes_a_free_gpu_though_a_desktop_keeps_some(size):
    (candidate,) = rank([gpu(used_gib=0.5)], SelectionRules(size=size)).candidates
    assert candidate.claim_bytes == 24 * GIB


def test_a_limit_does_not_fit_beside_a_claim_on_the_rest():
    rules = SelectionRules(size=Size(bytes=30 * GIB, is_limit=True))
    (rejection,) = rank([gpu()], rules, {gpu().uuid: [claim(1)]}).rejected
    assert (rejection.why, rejection.cause) == (
        "24.0 GiB do not fit, 23.0 GiB are neither used nor claimed",
        Cause.USE,
    )


def test_an_exclusive_gpu_that_is_claimed_is_taken():
    device = gpu(compute_mode="exclusive_process")
    assert rank([device], ANYTHING, {device.uuid: [claim(1)]}).candidates == ()


def test_a_claim_is_described_by_its_script():
    assert describe(gpu(pids=[7], used_gib=4), claims=[claim(24)]) == (
        "claimed by train.py (pid 7), 0 % busy, 20.0 of 24.0 GiB free"
    )
