"""A process that has a choice among equals finds out what connects them, when it takes GPUs and not before."""

from __future__ import annotations

import pytest

from autogpu.devices.model import Topology
from tests.support.fakes import FakeCuda, FakeDriver
from tests.support.values import gpu

FOUR = tuple(map(gpu, range(4)))
# GPU 0 belongs to GPU 2 and GPU 1 to GPU 3; without them it would be the two last.
NVLINKS = {frozenset((gpu(one).uuid, gpu(one + 2).uuid)): 4 for one in range(2)}


def driver(*devices):
    return FakeDriver(*(devices or FOUR), topology=Topology(NVLINKS))


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({"AUTOGPU_COUNT": "2"}, {1, 3}, id="two"),
        pytest.param({}, {3}, id="one"),
        pytest.param({"AUTOGPU_COUNT": "2", "AUTOGPU_BUSY": "wait"}, {1, 3}, id="without-a-wait"),
    ],
)
def test_a_context_gets_what_is_connected_best(started, environ, expected):
    process = started(*FOUR, driver=driver(), **environ)
    process.framework.take()
    assert set(process.claims) == expected


def test_one_alone_gets_a_gpu_whose_partner_is_taken(started):
    devices = (gpu(0, pids=[7], used_gib=9, busy=90), *FOUR[1:])
    process = started(*devices, driver=driver(*devices))
    process.framework.take()
    assert set(process.claims) == {2}


def test_what_is_claimed_at_the_import_is_connected_best_as_well(started):
    process = started(*FOUR, driver=driver(), cuda=FakeCuda(FOUR), AUTOGPU_VISIBLE="chosen", AUTOGPU_COUNT="2")
    assert set(process.claims) == {1, 3}


@pytest.mark.parametrize(
    ("devices", "environ", "readings"),
    [
        pytest.param(FOUR, {"AUTOGPU_VISIBLE": "chosen"}, 2, id="equals"),
        pytest.param(FOUR[:1], {"AUTOGPU_VISIBLE": "chosen"}, 1, id="one-gpu"),
        pytest.param(FOUR, {"AUTOGPU_VISIBLE": "chosen", "AUTOGPU_COUNT": "all"}, 1, id="no-choice"),
        pytest.param(FOUR, {}, 1, id="nothing-is-claimed"),
    ],
)
def test_an_import_reads_once_more_only_to_claim_among_equals(started, devices, environ, readings):
    process = started(*devices, driver=driver(*devices), cuda=FakeCuda(devices), **environ)
    assert process.driver.taken == readings


def test_the_line_and_the_reasons_say_what_connects_them(started):
    process = started(*FOUR, driver=driver(), AUTOGPU_COUNT="2", AUTOGPU_LEVEL="explain")
    process.framework.take()
    assert "  4 NVLinks between GPU 1 and GPU 3" in process.lines
