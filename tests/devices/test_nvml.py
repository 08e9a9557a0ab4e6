"""What is read by ctypes is what NVIDIA's own binding reads, structure by structure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpusim import Gpu, Server

# Prints both readings of each GPU, side by side.
BOTH = """
import json
import pynvml as theirs
from autogpu.devices import nvml as ours

def asked(call, *arguments):
    try:
        return call(*arguments)
    except theirs.NVMLError:
        return None

def processes(found):
    return None if found is None else sorted([each.pid, each.usedGpuMemory] for each in found)

MODES = {
    theirs.NVML_COMPUTEMODE_DEFAULT: "default",
    theirs.NVML_COMPUTEMODE_EXCLUSIVE_THREAD: "exclusive_thread",
    theirs.NVML_COMPUTEMODE_PROHIBITED: "prohibited",
    theirs.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "exclusive_process",
}
theirs.nvmlInit()
rows = []
for index in range(theirs.nvmlDeviceGetCount()):
    gpu = theirs.nvmlDeviceGetHandleByIndex(index)
    memory, pci = asked(theirs.nvmlDeviceGetMemoryInfo, gpu), asked(theirs.nvmlDeviceGetPciInfo, gpu)
    mig = asked(theirs.nvmlDeviceGetMigMode, gpu)
    rows.append({
        "uuid": theirs.nvmlDeviceGetUUID(gpu),
        "index": index,
        "name": theirs.nvmlDeviceGetName(gpu),
        "pci_bus_id": pci and pci.busId,
        "memory_total_bytes": memory and memory.total,
        "memory_used_bytes": memory and memory.used,
        "compute_processes": processes(asked(theirs.nvmlDeviceGetComputeRunningProcesses, gpu)),
        "graphics_processes": processes(asked(theirs.nvmlDeviceGetGraphicsRunningProcesses, gpu)),
        "compute_mode": MODES.get(asked(theirs.nvmlDeviceGetComputeMode, gpu)),
        "mig_enabled": bool(mig and mig[0]),
        "utilization_percent": asked(lambda: theirs.nvmlDeviceGetUtilizationRates(gpu).gpu),
    })
version = theirs.nvmlSystemGetDriverVersion()
reading = ours.read()
for row in reading["devices"]:
    del row["idle_s"]  # worked out from the samples
    for kind in ("compute_processes", "graphics_processes"):
        row[kind] = row[kind] and sorted(row[kind])
print(json.dumps([reading, {"devices": rows, "driver_version": version}]))
"""

FLEET = (
    Gpu(
        name="NVIDIA A100",
        memory="40GiB",
        used="1GiB",
        processes={4242: "2GiB", 4243: "3GiB"},
        graphics={17: "0.25GiB"},
        utilization=93,
        compute_mode="exclusive_process",
    ),
    Gpu(name="NVIDIA TITAN RTX", processes=dict.fromkeys(range(5000, 5060), "64MiB"), utilization=7),
    Gpu(unsupported=["memory", "processes", "graphics_processes", "compute_mode", "pci", "utilization", "samples"]),
    Gpu(processes={4244: "1GiB"}, unsupported=["process_memory"], compute_mode="prohibited"),
)


@pytest.mark.parametrize("index", range(len(FLEET)), ids=["busy", "more-processes-than-asked-for", "mute", "nameless"])
def test_each_reading_is_that_of_nvidias_own_binding(tmp_path, index):
    with Server(FLEET, folder=tmp_path) as server:
        done = server.run([sys.executable, "-c", BOTH])
    assert done.returncode == 0, done.stderr
    ours, theirs = json.loads(done.stdout)
    assert ours["devices"][index] == theirs["devices"][index]
    assert ours["driver_version"] == theirs["driver_version"]


@pytest.mark.gpu
@pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no NVIDIA driver on this machine")
def test_each_reading_of_a_real_driver_is_that_of_nvidias_own_binding():
    done = subprocess.run(
        [sys.executable, "-c", BOTH], env=dict(os.environ), capture_output=True, text=True, timeout=120, check=True
    )
    ours, theirs = json.loads(done.stdout)
    # Ours is a mean over ten seconds; and memory moves on a machine in use.
    for row in (*ours["devices"], *theirs["devices"]):
        del row["utilization_percent"], row["memory_used_bytes"]
    assert ours["devices"] == theirs["devices"]
    assert ours["driver_version"] == theirs["driver_version"]
