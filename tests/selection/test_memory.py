"""Memory claims and memory caps of a process."""

import pytest

from autogpu.frameworks.memory import caps, context_reserve_bytes
from autogpu.frozen import replace
from autogpu.policy import MemoryLimit, Policy
from autogpu.selection.model import MemoryDemand
from autogpu.text import GIB
from tests.support.selections import claim, decided, request
from tests.support.values import gpu

FOUR = MemoryLimit(bytes=4 * GIB)
QUARTER = MemoryLimit(percent=25.0)
# A job whose stated need is the whole GPU claims this, in GiB: one byte less than a job without a stated need.
STATED = 24 - 1 / GIB
SPLIT = {"virtual_gpus": 2}
PROCESS = {"limit_includes": "process"}
IN_USE, UNKNOWN = gpu(0, pids=[7], used_gib=4), gpu(0, total_gib=None, used_gib=None)


@pytest.mark.parametrize(
    ("policy", "caps_gib", "claims_gib"),
    [
        pytest.param({}, {}, 24, id="no-setting"),
        pytest.param({"limit": FOUR}, {0: 4}, 4.5, id="limit-in-bytes"),
        pytest.param({"limit": QUARTER}, {0: 6}, 6.5, id="limit-in-percent"),
        pytest.param({"limit": FOUR, **PROCESS}, {0: 3.5}, 4, id="limit-includes-the-context"),
        # A split GPU is claimed once for all its logical GPUs.
        pytest.param({**SPLIT, "limit": QUARTER}, {0: 6}, 12.5, id="split-gpu-and-a-limit-in-percent"),
        pytest.param({**SPLIT, "limit": FOUR, **PROCESS}, {0: 3.75}, 8, id="split-gpu-and-context-within-the-limit"),
        pytest.param({**SPLIT, "limit": MemoryLimit(bytes=20 * GIB)}, {0: 12}, STATED, id="split-gpu-and-a-huge-limit"),
        pytest.param(SPLIT, {0: int(23.5 * GIB * 0.9) // 2 / GIB}, 24, id="split-gpu-and-no-limit"),
    ],
)
def test_limit_and_split_decide_caps_and_claims(policy, caps_gib, claims_gib):
    decision = decided(gpu(0), **policy)
    found = caps(Policy(**policy), decision, default_share=0.9, parts=policy.get("virtual_gpus", 1))
    assert {ordinal: cap.bytes / GIB for ordinal, cap in found.items()} == caps_gib
    assert decision.claims == {gpu(0).uuid: claims_gib * GIB}


@pytest.mark.parametrize(
    ("gpus", "asked", "reserves", "expected_mib"),
    [
        pytest.param([IN_USE], {**SPLIT, "held": {0: claim(24, age_s=60.0)}}, {}, {0: 9984}, id="split-beside-a-job"),
        pytest.param([gpu(0), gpu(1)], {"limit": FOUR}, {}, {0: 4096, 1: 4096}, id="limit-also-on-untaken-gpus"),
        pytest.param([gpu(0)], {"limit": FOUR, **PROCESS}, {0: 956 << 20}, {0: 3140}, id="limit-minus-the-context"),
        pytest.param([UNKNOWN], {"limit": FOUR}, {}, {0: 4096}, id="limit-on-a-gpu-of-unknown-size"),
        pytest.param([UNKNOWN], {"limit": QUARTER}, {}, {}, id="limit-in-percent-of-an-unknown-size"),
    ],
)
def test_each_logical_gpu_has_a_cap(gpus, asked, reserves, expected_mib):
    decision = decided(*gpus, **asked)
    asked.pop("held", None)
    found = caps(Policy(**asked), decision, reserves, parts=asked.get("virtual_gpus", 1))
    assert {ordinal: cap.bytes >> 20 for ordinal, cap in found.items()} == expected_mib


def test_context_reserve_is_a_measured_context_plus_room_for_libraries():
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
def test_demand_becomes_bytes_and_a_limit_is_cut_to_the_gpu(demand, expected_gib):
    assert demand.on(gpu()) == expected_gib * GIB


def test_scripts_own_demand_overrides_the_policys_need():
    own = MemoryDemand(bytes=6 * GIB, is_limit=True)
    asked = request(gpu(0), script_demand=own, need_bytes=3 * GIB)
    assert asked.demand == own
    assert replace(asked, script_demand=None).demand == MemoryDemand(bytes=3 * GIB)
