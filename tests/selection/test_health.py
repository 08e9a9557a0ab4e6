"""GPUs with memory faults: their place in the ranking, and the text that reports the fault."""

import pytest

from autogpu.policy import Policy
from autogpu.reporting.gpus import health_faults
from autogpu.selection.ranking import ranking_of
from tests.support.selections import UNSET
from tests.support.values import DeviceFields, gpu

FAILED: DeviceFields = {"remapping_failed": True}
ERRORS: DeviceFields = {"uncorrected_errors": 2}
# Each memory fault and its text in reports.
FAULTS = [
    pytest.param(FAILED, "row remapping failed", id="remapping-failed"),
    pytest.param({"remapping_pending": True}, "row remapping pending until a reset", id="remapping-pending"),
    pytest.param({"retirement_pending": True}, "page retirement pending until a reset", id="retirement-pending"),
    pytest.param(ERRORS, "2 uncorrectable memory errors since boot", id="errors"),
]
BUSY = gpu(0, pids=[7], used_gib=2)
ANYTHING = Policy()


def order(*devices):
    return [candidate.device.index for candidate in ranking_of(devices, ANYTHING, UNSET).candidates]


@pytest.mark.parametrize(("fault", "words"), FAULTS)
def test_faulty_gpu_ranks_last_in_its_tier_and_reports_the_fault(fault, words):
    # Among equal GPUs the one with the highest index comes first.
    assert order(gpu(0), gpu(1, **fault)) == [0, 1]
    assert order(gpu(0, total_gib=8, busy=40), gpu(1, total_gib=80, **fault)) == [0, 1]
    # A GPU without a fault comes first even if its memory size is unknown.
    assert order(gpu(0, total_gib=None), gpu(1, **fault)) == [0, 1]
    # Another user's job is worse than a fault that may never matter.
    assert order(BUSY, gpu(1, **fault)) == [1, 0]
    assert order(BUSY, gpu(1, pids=[7], used_gib=2, **fault)) == [0, 1]
    assert not gpu(0, **fault).is_healthy
    assert health_faults(gpu(0, **fault)) == (words,)


def test_gpu_without_a_fault_is_healthy():
    assert gpu(0).is_healthy
    assert health_faults(gpu(0, uncorrected_errors=1)) == ("1 uncorrectable memory error since boot",)
