"""A process that has a choice among equals takes those that are connected best."""

from __future__ import annotations

import pytest

from autogpu.devices.model import NVLINK
from tests.support.fakes import FakeDriver
from tests.support.values import gpu

FOUR = tuple(map(gpu, range(4)))
FIRST_BUSY = (gpu(0, pids=[7], used_gib=9, busy=90), *FOUR[1:])
# GPU 0 belongs to GPU 2 and GPU 1 to GPU 3; without them it would be the two last.
NVLINKS = {frozenset((gpu(one).uuid, gpu(one + 2).uuid)): NVLINK for one in range(2)}


CHOSEN = {"AUTOGPU_VISIBLE": "chosen"}


@pytest.fixture
def process(started):
    return lambda *devices, **options: started(driver=FakeDriver(*devices, topology=NVLINKS), **options)


@pytest.mark.parametrize(
    ("devices", "environ", "expected"),
    [
        pytest.param(FOUR, {"AUTOGPU_COUNT": "2"}, {1, 3}, id="two"),
        pytest.param(FOUR, {}, {3}, id="one"),
        pytest.param(FOUR, {"AUTOGPU_COUNT": "2", "AUTOGPU_BUSY": "wait"}, {1, 3}, id="without-a-wait"),
        pytest.param(FIRST_BUSY, {}, {2}, id="one-whose-partner-is-taken"),
    ],
)
def test_a_context_gets_what_is_connected_best(process, devices, environ, expected):
    mine = process(*devices, counted=devices[::-1], **environ)
    mine.framework.take()
    assert set(mine.claims) == expected


def test_what_is_claimed_at_the_import_is_connected_best_as_well(process):
    assert set(process(*FOUR, counted=FOUR, **CHOSEN, AUTOGPU_COUNT="2").claims) == {1, 3}


def test_the_reading_of_the_import_is_enough_to_claim_among_equals(process):
    assert process(*FOUR, counted=FOUR, **CHOSEN).driver.taken == 1
