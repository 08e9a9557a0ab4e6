"""Inventories made from readings in plain values."""

import pynvml
import pytest

from autogpu.devices.model import ComputeMode, FailureCause, Inventory

MIB = 1 << 20


def reading(index, *processes, busy=0, active=None, mode=None):
    return {
        "uuid": f"GPU-{index}",
        "index": index,
        "utilization_percent": busy,
        "active_pids": active,
        "compute_processes": [(pid, mib and mib * MIB) for pid, mib in processes],
        "graphics_processes": None,
        "compute_mode": mode,
    }


@pytest.mark.parametrize(
    ("here", "elsewhere", "is_bare"),
    [
        pytest.param(reading(1, (7, 300)), 9000, True, id="small-context-at-rest"),
        pytest.param(reading(1, (7, 300)), 302, True, id="slightly-more-memory-elsewhere"),
        pytest.param(reading(1, (7, 1100)), 9000, False, id="more-memory-than-a-context"),
        pytest.param(reading(1, (7, 300)), 300, False, id="no-more-memory-elsewhere"),
        pytest.param(reading(1, (7, 300)), None, False, id="unknown-memory-elsewhere"),
        pytest.param(reading(1, (7, None)), 9000, False, id="unknown-memory-here"),
        pytest.param(reading(1, (7, 300), busy=1), 9000, False, id="gpu-computes"),
        pytest.param(reading(1, (7, 300), busy=None), 9000, False, id="unknown-utilization"),
        pytest.param(reading(1, (7, 300), (8, 500), busy=90, active=[8]), 9000, True, id="other-process-computes"),
        pytest.param(reading(1, (7, 300), (8, 500), busy=90, active=[7, 8]), 9000, False, id="both-processes-compute"),
    ],
)
def test_small_idle_context_of_a_process_that_uses_another_gpu_is_bare(here, elsewhere, is_bare):
    inventory = Inventory.from_reading({"devices": [reading(0, (7, elsewhere), busy=97), here]})
    used, other = (device.compute_processes[0] for device in inventory.devices)
    assert (used.pid, used.is_bare, other.pid, other.is_bare) == (7, False, 7, is_bare)


@pytest.mark.parametrize("mode", ComputeMode)
def test_compute_mode_is_read_from_its_number_in_nvml(mode):
    number = getattr(pynvml, f"NVML_COMPUTEMODE_{mode.name}")
    (device,) = Inventory.from_reading({"devices": [reading(0, mode=number)]}).devices
    assert device.compute_mode is mode


def test_compute_mode_of_a_newer_driver_is_unknown():
    (device,) = Inventory.from_reading({"devices": [reading(0, mode=pynvml.NVML_COMPUTEMODE_COUNT)]}).devices
    assert device.compute_mode is None


@pytest.mark.parametrize("cause", FailureCause)
def test_cause_of_a_failure_is_read_from_its_name(cause):
    inventory = Inventory.from_reading({"failure": "NVML reports: no", "failure_cause": cause.value})
    assert (inventory.failure, inventory.failure_cause) == ("NVML reports: no", cause)
