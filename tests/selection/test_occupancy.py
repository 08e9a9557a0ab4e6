"""Whether a GPU is free, and how much room is on it."""

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
        pytest.param(gpu(used_gib=0.9, total_gib=8), [], FREE, id="a-desktop-under-a-gib"),
        pytest.param(gpu(used_gib=3.5, total_gib=80), [], FREE, id="a-desktop-under-five-percent"),
        pytest.param(gpu(used_gib=1.1, total_gib=8), [], BUSY, id="hidden-processes-hold-memory"),
        pytest.param(gpu(busy=50, compute_processes=None), [], BUSY, id="hidden-processes-work"),
        pytest.param(gpu(busy=49), [], FREE, id="a-desktop-draws"),
        pytest.param(gpu(compute_processes=None, used_gib=0), [], FREE, id="processes-unreadable-memory-empty"),
        pytest.param(MINE, [], FREE, id="my-own-memory"),
        pytest.param(gpu(), [claim(24)], BUSY, id="claimed-before-its-holder-has-allocated-anything"),
        pytest.param(notebook(0), [claim(24, age_s=HOUR)], IDLE, id="a-notebook-without-use"),
        pytest.param(notebook(1), [claim(24, age_s=HOUR)], BUSY, id="it-does-something"),
        pytest.param(notebook(None), [claim(24, age_s=HOUR)], BUSY, id="unknown-whether"),
        pytest.param(gpu(pids=[7, 9], used_gib=20), [claim(24, age_s=HOUR)], BUSY, id="an-unmanaged-process-too"),
        pytest.param(gpu(), [claim(24, age_s=HOUR)], IDLE, id="has-made-no-context"),
        pytest.param(bare(36), [], FREE, id="bare-contexts-that-leave-a-quarter"),
        pytest.param(bare(37), [], BUSY, id="or-less"),
        pytest.param(bare(3, busy=50), [], BUSY, id="and-somebody-computes"),
        pytest.param(bare(1), [claim(24, age_s=HOUR)], IDLE, id="one-beside-an-idle-lease"),
    ],
)
def test_tier(device, claims, expected):
    assert tier(device, 42, claims) is expected


@pytest.mark.parametrize(
    ("device", "claims", "expected_gib"),
    [
        pytest.param(gpu(), [claim(6)], 18, id="promised-and-not-yet-used"),
        pytest.param(gpu(pids=[7], used_gib=4), [claim(6)], 18, id="used-within-the-claim-counts-once"),
        pytest.param(gpu(pids=[7], used_gib=9), [claim(6)], 15, id="used-beyond-the-claim"),
        pytest.param(gpu(pids=[8], used_gib=9), [claim(6)], 9, id="a-foreign-process-counts-by-use"),
        pytest.param(gpu(used_gib=9, compute_processes=None), [claim(6)], 9, id="unlisted-use-counts-beside-claims"),
        pytest.param(gpu(pids=[7], used_gib=9), [claim(24, age_s=HOUR)], 15, id="an-idle-claim-counts-by-use"),
        pytest.param(MINE, [], 24, id="my-own-use-is-room"),
    ],
)
def test_room(device, claims, expected_gib):
    assert spare_bytes(device, 42, claims) == expected_gib * GIB


def test_the_memory_of_one_process_by_ordinal():
    first, second, third = gpu(0, pids=[1, 2], used_gib=4), gpu(1, pids=[2], used_gib=3), gpu(2)
    machine = (first, second, third)
    assert own_memory_bytes(machine, [third.uuid, second.uuid, first.uuid], 2) == {1: 3 * GIB, 2: 2 * GIB}
    assert own_memory_bytes((), [first.uuid], 2) == {}
