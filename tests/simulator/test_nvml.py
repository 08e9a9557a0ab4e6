"""What NVML and the tools that people use say of the simulated GPUs."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.gpusim import Gpu, Server
from tests.support import environments, simulator_client
from tests.support.simulator_client import GIB, MIB, NVML, hold

nvml_python, run_nvml, pair = simulator_client.nvml_python, simulator_client.run_nvml, simulator_client.pair


def test_nvml_describes_each_gpu_of_the_fleet(tmp_path, run_nvml):
    gpus = [
        Gpu(name="NVIDIA GeForce GTX 1080 Ti", memory="11GiB", compute_capability="6.1", pci="0000:05:00.0"),
        Gpu(used="2GiB", processes={5004242: "3GiB"}, graphics={5000077: "64MiB"}, utilization=60),
    ]
    with Server(gpus, folder=tmp_path, driver="535.1.2") as server:
        said = run_nvml(
            server,
            """
            nvml.nvmlInit()
            say(nvml.nvmlSystemGetDriverVersion())
            for index in range(nvml.nvmlDeviceGetCount()):
                gpu = nvml.nvmlDeviceGetHandleByIndex(index)
                memory = nvml.nvmlDeviceGetMemoryInfo(gpu)
                say(
                    nvml.nvmlDeviceGetName(gpu), nvml.nvmlDeviceGetUUID(gpu), nvml.nvmlDeviceGetPciInfo(gpu).busId,
                    memory.total, memory.used, nvml.nvmlDeviceGetCudaComputeCapability(gpu),
                    nvml.nvmlDeviceGetUtilizationRates(gpu).gpu, nvml.nvmlDeviceGetComputeMode(gpu),
                    [[p.pid, p.usedGpuMemory] for p in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)],
                    [[p.pid, p.usedGpuMemory] for p in nvml.nvmlDeviceGetGraphicsRunningProcesses(gpu)],
                    ask("nvmlDeviceGetMigMode", gpu),
                )
            """,
        )
        uuids = [gpu.uuid for gpu in server.gpus]
    assert said[0] == ["535.1.2"]
    missing = "NVMLError_NotSupported"
    assert said[1] == [
        *(
            "NVIDIA GeForce GTX 1080 Ti",
            uuids[0],
            "00000000:05:00.0",
            11 * GIB,
            0,
            [6, 1],
            0,
            0,
            [],
            [],
            missing,
        )
    ]
    assert said[2] == [
        *("NVIDIA TITAN RTX", uuids[1], "00000000:06:00.0", 24 * GIB, 5 * GIB + 64 * MIB, [7, 5], 60, 0),
        *([[5004242, 3 * GIB]], [[5000077, 64 * MIB]], missing),
    ]


def test_another_load_is_seen_by_a_running_process(pair, nvml_python):
    program = NVML + textwrap.dedent(
        """
        nvml.nvmlInit()
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        for line in itertools.chain(["first"], sys.stdin):
            say(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu, nvml.nvmlDeviceGetMemoryInfo(gpu).used,
                [p.pid for p in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)])
        """
    )
    watcher = pair.popen([str(nvml_python), "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert json.loads(watcher.stdout.readline()) == [0, 0, []]
    pair.change(0, utilization=75, processes={5000031: "1GiB"})
    watcher.stdin.write("again\n")
    watcher.stdin.flush()
    assert json.loads(watcher.stdout.readline()) == [75, GIB, [5000031]]
    assert pair.gpus[0].utilization == 75


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        pytest.param({"utilization": 40}, [40] * 10, id="constant"),
        pytest.param({"utilization_samples": [0, 90, 0]}, [0, 90, 0], id="listed"),
    ],
)
def test_utilization_samples_reach_back_over_seconds(tmp_path, run_nvml, load, expected):
    with Server([Gpu(**load)], folder=tmp_path) as server:
        said = run_nvml(
            server,
            """
            nvml.nvmlInit()
            gpu = nvml.nvmlDeviceGetHandleByIndex(0)
            kind, samples = nvml.nvmlDeviceGetSamples(gpu, nvml.NVML_GPU_UTILIZATION_SAMPLES, 0)
            say(kind, [s.sampleValue.uiVal for s in samples], [s.timeStamp for s in samples])
            say(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu, time.time())
            newest = samples[len(samples) - 1].timeStamp
            before = samples[len(samples) - 2].timeStamp
            print(len(nvml.nvmlDeviceGetSamples(gpu, nvml.NVML_GPU_UTILIZATION_SAMPLES, before)[1]) >= 1)
            say(ask("nvmlDeviceGetSamples", gpu, nvml.NVML_GPU_UTILIZATION_SAMPLES, newest + 60_000_000))
            say(nvml.nvmlDeviceGetSamples(gpu, nvml.NVML_TOTAL_POWER_SAMPLES, 0)[1][0].sampleValue.uiVal)
            """.replace("print(", "say("),
        )
    kind, values, times = said[0]
    assert (kind, values) == (1, expected)
    assert [later - earlier for earlier, later in zip(times, times[1:])] == [1_000_000] * (len(times) - 1)
    assert said[1][0] == expected[-1]
    assert 0 <= said[1][1] - times[-1] / 1e6 < 2
    assert said[2:4] == [[True], ["NVMLError_NotFound"]]
    assert said[4] == [30000 + 2000 * expected[0]]


READERS = {
    "name": "nvmlDeviceGetName",
    "uuid": "nvmlDeviceGetUUID",
    "pci": "nvmlDeviceGetPciInfo",
    "memory": "nvmlDeviceGetMemoryInfo",
    "utilization": "nvmlDeviceGetUtilizationRates",
    "processes": "nvmlDeviceGetComputeRunningProcesses",
    "graphics_processes": "nvmlDeviceGetGraphicsRunningProcesses",
    "compute_mode": "nvmlDeviceGetComputeMode",
    "power": "nvmlDeviceGetPowerUsage",
    "samples": "nvmlDeviceGetSamples",
    "temperature": "nvmlDeviceGetTemperature",
}


@pytest.mark.parametrize("missing", READERS)
def test_a_reading_that_a_gpu_lacks_fails_alone(tmp_path, run_nvml, missing):
    program = f"""
        extra = {{"nvmlDeviceGetSamples": (1, 0), "nvmlDeviceGetTemperature": (0,)}}
        nvml.nvmlInit()
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        say(*[name for name, function in {READERS!r}.items()
              if ask(function, gpu, *extra.get(function, ())) == "NVMLError_NotSupported"])
    """
    with Server([Gpu(unsupported=[missing])], folder=tmp_path) as server:
        assert run_nvml(server, program) == [[missing]]


PROCESSES = """
    nvml.nvmlInit()
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    say(*[p.usedGpuMemory for p in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)])
    say(*[p.usedGpuMemory for p in nvml.nvmlDeviceGetGraphicsRunningProcesses(gpu)])
    say(nvml.nvmlDeviceGetMemoryInfo(gpu).used)
"""


@pytest.mark.parametrize(
    ("fault", "compute", "graphics"),
    [
        pytest.param({}, [GIB], [MIB], id="none"),
        pytest.param({"hide_processes": True}, [], [], id="hidden"),
        pytest.param({"unsupported": ["process_memory"]}, [None], [None], id="memory-unknown"),
    ],
)
@pytest.mark.parametrize("level", ["gpu", "fleet"])
def test_process_lists(tmp_path, run_nvml, fault, compute, graphics, level):
    gpu = Gpu(processes={5000009: "1GiB"}, graphics={5000008: "1MiB"})
    given = dataclasses.replace(gpu, **fault) if level == "gpu" else gpu
    with Server([given], folder=tmp_path, **(fault if level == "fleet" else {})) as server:
        assert run_nvml(server, PROCESSES) == [compute, graphics, [GIB + MIB]]


def test_nvitop_chooses_the_idle_gpu_and_sees_who_holds_the_other(pair):
    base = Path(getattr(sys, "_base_executable", None) or sys.executable)
    python = environments.environment(base, ["nvitop>=1.3"], with_autogpu=False)
    holder = hold(pair, 0, 20 * GIB, CUDA_DEVICE_ORDER="PCI_BUS_ID")
    program = (
        "import nvitop; print(nvitop.select_devices(format='index', min_free_memory='8GiB', sort=True));"
        "print(sorted(nvitop.Device(0).processes()))"
    )
    done = pair.run([str(python), "-c", program], environ={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert done.stdout.splitlines() == ["[1]", f"[{holder.pid}]"], done.stderr
