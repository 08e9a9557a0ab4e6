"""What a process is promised, and what it is held to."""

from __future__ import annotations

import pytest

from autogpu.policy import MemoryLimit, Policy
from autogpu.reporting.text import GIB
from autogpu.selection.memory import caps, context_reserve_bytes
from autogpu.selection.model import MemoryDemand
from tests.support.selections import claim, claimed, decided
from tests.support.values import gpu


@pytest.mark.parametrize(
    ("policy", "expected", "claims"),
    [
        (Policy(), {}, 24),
        (Policy(need_bytes=6 * GIB), {}, 6),
        (Policy(limit=MemoryLimit(bytes=4 * GIB)), {0: 4}, 4.5),
        (Policy(limit=MemoryLimit(percent=25.0)), {0: 6}, 6.5),
        (Policy(limit=MemoryLimit(bytes=4 * GIB), limit_includes="process"), {0: 3.5}, 4),
    ],
    ids=["nothing-said", "need", "limit", "share-of-the-gpu", "limit-of-the-process"],
)
def test_what_is_capped_and_what_is_claimed(policy, expected, claims):
    decision = decided(gpu(0), policy=policy)
    assert {ordinal: cap / GIB for ordinal, cap in caps(policy, decision).items()} == expected
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
        (Policy(**SPLIT), int(23.5 * GIB * 0.9) // 2, 24),
    ],
    ids=["limit", "share-of-the-gpu", "limit-of-the-process", "more-than-the-gpu-has", "need", "nothing-said"],
)
def test_a_split_gpu_is_claimed_once_for_all_its_parts(policy, cap, claims):
    decision = decided(gpu(0), policy=policy)
    assert caps(policy, decision, default_share=0.9) == {0: cap}
    assert decision.claims == {gpu(0).uuid: claims * GIB}


def test_the_parts_of_a_best_effort_job_share_its_half():
    policy = Policy(**SPLIT)
    decision = decided(gpu(0, pids=[7], used_gib=4), policy=policy, claims_on=claimed((0, claim(24))))
    assert caps(policy, decision) == {0: 5 * GIB}


def test_a_limit_is_in_force_on_every_gpu_that_the_process_has():
    policy = Policy(limit=MemoryLimit(bytes=GIB))
    decision = decided(gpu(0), gpu(1), policy=policy)
    assert (decision.ordinals, caps(policy, decision)) == ((1,), {0: GIB, 1: GIB})


def test_a_share_is_capped_only_where_it_is_shared():
    decision = decided(gpu(0, pids=[7], used_gib=4), gpu(1, pids=[8], used_gib=20))
    assert (decision.ordinals, caps(Policy(), decision)) == ((0,), {0: 10 * GIB})


def test_the_context_reserve_is_what_a_context_was_seen_to_take_and_some_for_libraries():
    mib = GIB >> 10
    measured = (None, 200 * mib, 700 * mib)
    assert [context_reserve_bytes(size) for size in measured] == [512 * mib, 512 * mib, 956 * mib]


@pytest.mark.parametrize(("reserves", "cap_mib"), [({}, 3584), ({0: 956 << 20}, 3140)], ids=["estimated", "measured"])
def test_a_limit_on_the_whole_process_leaves_room_for_the_context(reserves, cap_mib):
    policy = Policy(limit=MemoryLimit(bytes=4 * GIB), limit_includes="process")
    assert caps(policy, decided(gpu(0), policy=policy), reserves) == {0: cap_mib << 20}


@pytest.mark.parametrize(
    ("demand", "expected_gib"),
    [
        (MemoryDemand(), 24),
        (MemoryDemand(bytes=6 * GIB), 6),
        (MemoryDemand(bytes=60 * GIB), 60),
        (MemoryDemand(bytes=60 * GIB, is_limit=True), 24),
        (MemoryDemand(percent=50), 12),
        (MemoryDemand(percent=50, context_bytes=GIB), 13),
        (MemoryDemand(percent=100, context_bytes=GIB, is_limit=True), 24),
        (MemoryDemand(bytes=8 * GIB, context_bytes=GIB), 9),
    ],
)
def test_a_demand_in_bytes_and_only_a_limit_stops_at_all_of_the_gpu(demand, expected_gib):
    assert demand.on(gpu()) == expected_gib * GIB
