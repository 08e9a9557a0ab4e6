"""Both readers of GPUs, NVML on the simulated server and the fake driver of other tests, pass the same tests."""

import subprocess
import sys

import pytest

from tests.devices.printed import value_of
from tests.gpusim import Gpu, Server
from tests.support.fakes import FakeDriver
from tests.support.values import gpu

GIB = 1 << 30

# Reads the GPUs in a child process, waits for a line on stdin, and reads them again in this process.
TWICE = """
import os, sys
from autogpu.devices import probe
first = probe.start(os.environ)
inventory = first.result(60.0)
first.close()
print(repr(inventory), flush=True)
sys.stdin.readline()
print(repr(probe.start_in_process(os.environ, inventory).result(60.0)), flush=True)
"""


def simulated(folder):
    """Return two NVML readings of two GPUs. A process uses one GPU; later the other GPU computes as well."""
    with Server([Gpu(processes={5004242: "3GiB"}, utilization=60), Gpu()], folder=folder) as server:
        reading = server.popen([sys.executable, "-c", TWICE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        first = value_of(reading.stdout.readline())
        server.change(1, utilization=80)
        second, _ = reading.communicate("\n", timeout=60)
    assert reading.returncode == 0
    return first, value_of(second)


def fake(folder):
    driver = FakeDriver(gpu(0, pids=[5004242], used_gib=3, busy=60), gpu(1))
    reading = driver.start({})
    first = reading.result(60.0)
    reading.close()
    driver.change(1, utilization_percent=80)
    return first, driver.start_in_process({}, first).result(60.0)


@pytest.fixture(params=[fake, simulated])
def readings(request, tmp_path):
    return request.param(tmp_path)


def test_second_reading_has_the_same_gpus_and_their_new_utilization(readings):
    first, second = readings
    for inventory in readings:
        check_identity(inventory)
        assert [device.index for device in inventory.devices] == [0, 1]
    assert [device.uuid for device in first.devices] == [device.uuid for device in second.devices]
    used, idle = first.devices
    assert [(p.pid, p.memory_used_bytes) for p in used.compute_processes] == [(5004242, 3 * GIB)]
    assert (used.memory_used_bytes, used.memory_free_bytes) == (3 * GIB, used.memory_total_bytes - 3 * GIB)
    assert (idle.compute_processes, idle.graphics_processes, idle.memory_used_bytes) == ((), (), 0)
    # The second reading is not a copy of the first one.
    assert idle.utilization_percent == 0 < second.devices[1].utilization_percent


def check_identity(inventory):
    assert (inventory.failure, inventory.failure_cause) == (None, None)
    assert len({device.uuid for device in inventory.devices}) == len(inventory.devices)
    for device in inventory.devices:
        assert device.uuid.startswith("GPU-")
        assert device.name
        assert device.memory_total_bytes is None or 0 <= device.memory_used_bytes <= device.memory_total_bytes
