"""The tier of a GPU (free, busy or idle lease) and its spare memory."""

import pytest

from autogpu.devices.model import Process
from autogpu.selection.jobs import own_memory_bytes, spare_bytes, tier
from autogpu.selection.model import Tier
from autogpu.text import GIB
from tests.support.selections import claim
from tests.support.values import gpu

FREE, BUSY, IDLE = Tier.FREE, Tier.BUSY, Tier.IDLE_LEASE
HOUR = 3600.0
MINE = gpu(pids=[42], used_gib=5)


def notebook(busy):
    return gpu(pids=[7], used_gib=20, busy=busy)


def bare(count, busy=0):
    contexts = tuple(Process(pid, GIB // 2, is_bare=True) for pid in range(count))
    return gpu(compute_processes=contexts, used_gib=count / 2, busy=busy)


@pytest.mark.parametrize(
    ("device", "claims", "expected"),
    [
        pytest.param(gpu(used_gib=0.9, total_gib=8), [], FREE, id="desktop-below-one-gib"),
        pytest.param(gpu(used_gib=3.5, total_gib=80), [], FREE, id="desktop-below-five-percent"),
        pytest.param(gpu(used_gib=1.1, total_gib=8), [], BUSY, id="hidden-processes-hold-memory"),
        pytest.param(gpu(busy=50, compute_processes=None), [], BUSY, id="hidden-processes-compute"),
        pytest.param(gpu(busy=49), [], FREE, id="desktop-below-half-utilization"),
        pytest.param(gpu(compute_processes=None, used_gib=0), [], FREE, id="processes-unreadable-and-memory-unused"),
        pytest.param(MINE, [], FREE, id="memory-of-this-process"),
        pytest.param(gpu(), [claim(24)], BUSY, id="claimed-before-the-holder-allocates"),
        pytest.param(notebook(0), [claim(24, age_s=HOUR)], IDLE, id="notebook-at-rest-for-an-hour"),
        pytest.param(notebook(1), [claim(24, age_s=HOUR)], BUSY, id="notebook-that-computes"),
        pytest.param(notebook(None), [claim(24, age_s=HOUR)], BUSY, id="notebook-with-unknown-utilization"),
        pytest.param(gpu(pids=[7, 9], used_gib=20), [claim(24, age_s=HOUR)], BUSY, id="notebook-and-unmanaged-process"),
        pytest.param(gpu(), [claim(24, age_s=HOUR)], IDLE, id="old-claim-without-a-context"),
        pytest.param(bare(36), [], FREE, id="bare-contexts-with-a-quarter-free"),
        pytest.param(bare(37), [], BUSY, id="bare-contexts-with-less-than-a-quarter-free"),
        pytest.param(bare(3, busy=50), [], BUSY, id="bare-contexts-at-half-utilization"),
        pytest.param(bare(1), [claim(24, age_s=HOUR)], IDLE, id="bare-context-beside-an-idle-lease"),
    ],
)
def test_tier_follows_from_readings_and_claims(device, claims, expected):
    assert tier(device, 42, claims) is expected


@pytest.mark.parametrize(
    ("device", "claims", "expected_gib"),
    [
        pytest.param(gpu(), [claim(6)], 18, id="claimed-and-not-yet-used"),
        pytest.param(gpu(pids=[7], used_gib=4), [claim(6)], 18, id="used-within-the-claim-counts-once"),
        pytest.param(gpu(pids=[7], used_gib=9), [claim(6)], 15, id="used-beyond-the-claim"),
        pytest.param(gpu(pids=[8], used_gib=9), [claim(6)], 9, id="unmanaged-process-counts-by-its-use"),
        pytest.param(gpu(used_gib=9, compute_processes=None), [claim(6)], 9, id="unlisted-use-counts-beside-claims"),
        pytest.param(gpu(pids=[7], used_gib=9), [claim(24, age_s=HOUR)], 15, id="idle-lease-counts-by-its-use"),
        pytest.param(MINE, [], 24, id="own-use-is-spare"),
    ],
)
def test_spare_memory_is_neither_used_nor_claimed(device, claims, expected_gib):
    assert spare_bytes(device, 42, claims) == expected_gib * GIB


def test_memory_of_one_process_is_keyed_by_ordinal():
    first, second, third = gpu(0, pids=[1, 2], used_gib=4), gpu(1, pids=[2], used_gib=3), gpu(2)
    machine = (first, second, third)
    assert own_memory_bytes(machine, [third.uuid, second.uuid, first.uuid], 2) == {1: 3 * GIB, 2: 2 * GIB}
    assert own_memory_bytes((), [first.uuid], 2) == {}
