"""Servers as they are sold."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.gpusim.fleets import FLEETS
from tests.support.environments import ROOT

# What `autogpu pick` says of the two that it takes; None where nothing is published of what connects them.
CONNECTED = {
    "t4": None,
    "rtx-2080-ti": "2 NVLinks between GPU 2 and GPU 3",
    "rtx-4090": "one PCIe host bridge between GPU 6 and GPU 7",
    "l40s": None,
    "dgx-a100": "NVSwitch between GPU 6 and GPU 7",
    "h100": "NVSwitch between GPU 6 and GPU 7",
    "h200": "NVSwitch between GPU 6 and GPU 7",
    "b200": "NVSwitch between GPU 6 and GPU 7",
    "gb200": "NVSwitch between GPU 2 and GPU 3",
}
# Servers with cards in MIG mode: tests/hardware/test_mig.py.
CUT = ("a100-mig",)

DESCRIBE = """
import json
import pynvml as nvml
nvml.nvmlInit()
gpus = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
print(json.dumps([
    [nvml.nvmlDeviceGetName(gpu), nvml.nvmlDeviceGetMemoryInfo(gpu).total >> 20,
     "%d.%d" % nvml.nvmlDeviceGetCudaComputeCapability(gpu), nvml.nvmlDeviceGetPciInfo(gpu).busId[4:].lower()]
    for gpu in gpus
]))
"""


def on_fleet(name, *command):
    arguments = [sys.executable, "-m", "tests.gpusim", "--fleet", name, "--", sys.executable, *command]
    return subprocess.run(arguments, capture_output=True, text=True, cwd=ROOT, timeout=120, check=True)


@pytest.mark.parametrize("name", FLEETS)
def test_nvml_shows_the_server(name):
    shown = json.loads(on_fleet(name, "-c", DESCRIBE).stdout)
    assert shown == [[gpu.name, gpu.memory_bytes >> 20, gpu.compute_capability, gpu.pci] for gpu in FLEETS[name].gpus]
    assert len(shown) in (4, 8)


@pytest.mark.parametrize("name", CONNECTED)
def test_what_connects_its_gpus(name):
    said = on_fleet(name, "-m", "autogpu", "pick", "--count", "2", "--explain").stderr.splitlines()
    connected = [line for line in said if " between " in line]
    assert connected == ([f"autogpu:   {CONNECTED[name]}"] if CONNECTED[name] else [])


def test_each_server_is_told_of():
    assert {*CONNECTED, *CUT} == set(FLEETS)
