"""NVML's readings of the simulated GPUs."""

from dataclasses import replace

from tests.gpusim import Gpu
from tests.support.simulator_client import GIB, MIB, run_nvml


def test_nvml_describes_each_gpu_of_the_fleet(server_of):
    server = server_of(
        Gpu(name="NVIDIA GeForce GTX 1080 Ti", memory="11GiB", compute_capability="6.1", pci="0000:05:00.0"),
        Gpu(used="2GiB", processes={5004242: "3GiB"}, graphics={5000077: "64MiB"}, utilization=60),
        driver="535.1.2",
    )
    said = run_nvml(
        server,
        """
        nvml.nvmlInit()
        say(nvml.nvmlSystemGetDriverVersion())
        for index in range(nvml.nvmlDeviceGetCount()):
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            memory = nvml.nvmlDeviceGetMemoryInfo(gpu)
            say(nvml.nvmlDeviceGetName(gpu), nvml.nvmlDeviceGetUUID(gpu), nvml.nvmlDeviceGetPciInfo(gpu).busId)
            say(memory.total, memory.used, nvml.nvmlDeviceGetCudaComputeCapability(gpu))
            say(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu, nvml.nvmlDeviceGetComputeMode(gpu),
                ask("nvmlDeviceGetMigMode", gpu))
            say([[p.pid, p.usedGpuMemory] for p in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)],
                [[p.pid, p.usedGpuMemory] for p in nvml.nvmlDeviceGetGraphicsRunningProcesses(gpu)])
        """,
    )
    uuids, missing = [gpu.uuid for gpu in server.gpus], "NVMLError_NotSupported"
    assert said == [
        ["535.1.2"],
        ["NVIDIA GeForce GTX 1080 Ti", uuids[0], "00000000:05:00.0"],
        [11 * GIB, 0, [6, 1]],
        [0, 0, missing],
        [[], []],
        ["NVIDIA TITAN RTX", uuids[1], "00000000:06:00.0"],
        [24 * GIB, 5 * GIB + 64 * MIB, [7, 5]],
        [60, 0, missing],
        [[[5004242, 3 * GIB]], [[5000077, 64 * MIB]]],
    ]


def test_nvml_can_hide_processes_or_their_memory(server_of):
    listed = Gpu(processes={5000009: "1GiB"}, graphics={5000008: "1MiB"})
    program = """
        nvml.nvmlInit()
        for index in range(nvml.nvmlDeviceGetCount()):
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            say([p.usedGpuMemory for p in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)],
                [p.usedGpuMemory for p in nvml.nvmlDeviceGetGraphicsRunningProcesses(gpu)],
                nvml.nvmlDeviceGetMemoryInfo(gpu).used)
    """
    server = server_of(listed, replace(listed, hide_processes=True), replace(listed, unsupported=["process_memory"]))
    used = GIB + MIB
    assert run_nvml(server, program) == [[[GIB], [MIB], used], [[], [], used], [[None], [None], used]]
