"""What a process is promised, and what it is held to."""

import pytest

from autogpu.frozen import replace
from autogpu.policy import MemoryLimit, Policy
from autogpu.selection.memory import caps, context_reserve_bytes, demand_told
from autogpu.selection.model import MemoryDemand
from autogpu.text import GIB
from tests.support.selections import claim, decided, request
from tests.support.values import gpu

FOUR = MemoryLimit(bytes=4 * GIB)
QUARTER = MemoryLimit(percent=25.0)
# All of a GPU, for a job that has said so.
STATED = 24 - 1 / GIB
SPLIT = {"virtual_gpus": 2}
PROCESS = {"limit_includes": "process"}
IN_USE = gpu(0, pids=[7], used_gib=4)


@pytest.mark.parametrize(
    ("policy", "caps_gib", "claims_gib"),
    [
        pytest.param({}, {}, 24, id="nothing-said"),
        pytest.param({"limit": FOUR}, {0: 4}, 4.5, id="limit"),
        pytest.param({"limit": QUARTER}, {0: 6}, 6.5, id="share-of-the-gpu"),
        pytest.param({"limit": FOUR, **PROCESS}, {0: 3.5}, 4, id="limit-of-the-process"),
        # A split GPU is claimed once for all its parts.
        pytest.param({**SPLIT, "limit": QUARTER}, {0: 6}, 12.5, id="split-share-of-the-gpu"),
        pytest.param({**SPLIT, "limit": FOUR, **PROCESS}, {0: 3.75}, 8, id="split-limit-of-the-process"),
        pytest.param({**SPLIT, "limit": MemoryLimit(bytes=20 * GIB)}, {0: 12}, STATED, id="split-more-than-it-has"),
        pytest.param(SPLIT, {0: int(23.5 * GIB * 0.9) // 2 / GIB}, 24, id="split-and-nothing-said"),
    ],
)
def test_what_is_capped_and_what_is_claimed(policy, caps_gib, claims_gib):
    decision = decided(gpu(0), **policy)
    found = caps(Policy(**policy), decision, default_share=0.9, parts=policy.get("virtual_gpus", 1))
    assert {ordinal: cap.bytes / GIB for ordinal, cap in found.items()} == caps_gib
    assert decision.claims == {gpu(0).uuid: claims_gib * GIB}


@pytest.mark.parametrize(
    ("gpus", "asked", "reserves", "expected_mib"),
    [
        pytest.param([IN_USE], {**SPLIT, "held": {0: claim(24, age_s=60.0)}}, {}, {0: 9984}, id="parts-beside-others"),
        pytest.param([gpu(0), gpu(1)], {"limit": FOUR}, {}, {0: 4096, 1: 4096}, id="a-limit-also-where-none-is-taken"),
        pytest.param([gpu(0)], {"limit": FOUR, **PROCESS}, {0: 956 << 20}, {0: 3140}, id="less-a-measured-context"),
    ],
)
def test_what_each_logical_gpu_may_allocate(gpus, asked, reserves, expected_mib):
    decision = decided(*gpus, **asked)
    asked.pop("held", None)
    found = caps(Policy(**asked), decision, reserves, parts=asked.get("virtual_gpus", 1))
    assert {ordinal: cap.bytes >> 20 for ordinal, cap in found.items()} == expected_mib


def test_the_context_reserve_is_what_a_context_was_seen_to_take_and_some_for_libraries():
    measured_mib = {None: 512, 200: 512, 700: 956}
    assert {mib: context_reserve_bytes(mib and mib << 20) >> 20 for mib in measured_mib} == measured_mib


@pytest.mark.parametrize(
    ("demand", "expected_gib"),
    [
        (MemoryDemand(), 24),
        (MemoryDemand(bytes=24 * GIB), STATED),
        (MemoryDemand(bytes=60 * GIB, is_limit=True), STATED),
        (MemoryDemand(percent=50, context_bytes=GIB), 13),
        (MemoryDemand(percent=100, context_bytes=GIB, is_limit=True), STATED),
        (MemoryDemand(bytes=8 * GIB, context_bytes=GIB), 9),
    ],
    ids=str,
)
def test_a_demand_in_bytes_and_only_a_limit_stops_at_all_of_the_gpu(demand, expected_gib):
    assert demand.on(gpu()) == expected_gib * GIB


def test_scripts_own_demand_counts_more_than_the_policys_need():
    own = MemoryDemand(bytes=6 * GIB, is_limit=True)
    asked = request(gpu(0), script_demand=own, need_bytes=3 * GIB)
    assert demand_told(asked) == own
    assert demand_told(replace(asked, script_demand=None)) == MemoryDemand(bytes=3 * GIB)
