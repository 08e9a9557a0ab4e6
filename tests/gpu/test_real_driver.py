"""Rules of CUDA that only a real driver can confirm: which GPUs ``CUDA_VISIBLE_DEVICES`` shows."""

from __future__ import annotations

import os
import sys

import pytest

from autogpu.devices.enumeration import named_uuids
from tests.gpu.conftest import answer, needs_driver

pytestmark = [pytest.mark.gpu, needs_driver, pytest.mark.xdist_group("gpu")]

# Prints the GPUs that CUDA shows. It runs in its own process because CUDA reads the variable once.
ASK = """
import ctypes
from autogpu.devices import cuda as driver
cuda = ctypes.CDLL("libcuda.so.1")
assert driver.visible_uuids() is None, "CUDA answered before cuInit"
cuda.cuInit(0)
print(",".join(driver.visible_uuids() or ()))
"""


def seen_by_cuda(value):
    environ = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if value is not None:
        environ["CUDA_VISIBLE_DEVICES"] = value
    return tuple(filter(None, answer(sys.executable, "-c", ASK, environ=environ).split(",")))


def test_every_gpu_can_be_read(machine):
    assert machine.devices
    for device in machine.devices:
        assert device.uuid.startswith("GPU-")
        assert device.memory_total_bytes is None or device.memory_total_bytes > 0
        assert device.utilization_percent is None or 0 <= device.utilization_percent <= 100


@pytest.mark.parametrize(
    "value",
    [
        *(None, "", "-1", "-1,0", "0", "0,0", "0,-1", "99", "NoDevFiles", "0gpu", " 0"),
        *("{uuid}", "{prefix}", "{uuid},{uuid}", "0,{uuid}"),
    ],
)
def test_autogpu_parses_cuda_visible_devices_as_the_driver_does(machine, value):
    uuid = machine.devices[0].uuid
    value = value and value.format(uuid=uuid, prefix=uuid[:12])
    assert named_uuids(value, machine, "PCI_BUS_ID") == seen_by_cuda(value)
