"""What NVML and the tools that people use say of the simulated GPUs."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.gpusim import Gpu
from tests.support import environments
from tests.support.simulator_client import GIB, MIB, NVML, PCI, Program, hold, run_nvml


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


def test_a_card_tells_how_it_is_connected_without_which_tensorflow_logs_an_error_for_each(server_of):
    program = """
nvml.nvmlInit()
gpu = nvml.nvmlDeviceGetHandleByIndex(0)
say([ask(f"nvmlDeviceGet{which}PcieLink{what}", gpu) for which in ("Curr", "Max") for what in ("Generation", "Width")])
"""
    assert run_nvml(server_of(Gpu()), program) == [[[3, 16, 3, 16]]]


def test_another_load_and_the_loss_of_a_gpu_are_seen_by_a_running_process(pair):
    watcher = Program(
        pair,
        f"""{NVML}
nvml.nvmlInit()
gpu = nvml.nvmlDeviceGetHandleByIndex(0)
while True:
    say(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu, nvml.nvmlDeviceGetMemoryInfo(gpu).used,
        [p.pid for p in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)])
    sys.stdin.readline()
    if ask("nvmlDeviceGetName", gpu) != "NVIDIA TITAN RTX":
        say(ask("nvmlDeviceGetName", gpu))
""",
    )
    assert watcher.said() == [0, 0, []]
    pair.change(0, utilization=75, processes={5000031: "1GiB"})
    watcher.go_on()
    assert watcher.said() == [75, GIB, [5000031]]
    assert pair.gpus[0].utilization == 75
    pair.change(0, nvml="GPU_IS_LOST")
    watcher.go_on()
    assert watcher.said() == ["NVMLError_GpuIsLost"]


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        pytest.param({"utilization": 40}, [40] * 10, id="constant"),
        pytest.param({"utilization_samples": [0, 90, 0]}, [0, 90, 0], id="listed"),
    ],
)
def test_utilization_samples_reach_back_over_seconds(server_of, load, expected):
    (kind, values, times), (now, before_s, after_s), others = run_nvml(
        server_of(Gpu(**load)),
        """
        nvml.nvmlInit()
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        before = time.time()
        kind, samples = nvml.nvmlDeviceGetSamples(gpu, nvml.NVML_GPU_UTILIZATION_SAMPLES, 0)
        times = [s.timeStamp for s in samples]
        say(kind, [s.sampleValue.uiVal for s in samples], times)
        say(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu, before, time.time())
        say(len(nvml.nvmlDeviceGetSamples(gpu, nvml.NVML_GPU_UTILIZATION_SAMPLES, times[-2])[1]) >= 1,
            ask("nvmlDeviceGetSamples", gpu, nvml.NVML_GPU_UTILIZATION_SAMPLES, times[-1] + 60_000_000),
            nvml.nvmlDeviceGetSamples(gpu, nvml.NVML_TOTAL_POWER_SAMPLES, 0)[1][0].sampleValue.uiVal)
        """,
    )
    assert (kind, values, now) == (1, expected, expected[-1])
    assert [later - earlier for earlier, later in zip(times, times[1:])] == [1_000_000] * (len(times) - 1)
    # The newest is of the last whole second.
    assert before_s - 1 < times[-1] / 1e6 <= after_s
    assert others == [True, "NVMLError_NotFound", 30000 + 2000 * expected[0]]


ONE, TWO, SWITCH, OTHER_SWITCH = "0000:01:00.0", "0000:02:00.0", "0000:c1:00.0", "0000:c2:00.0"
CONNECTED = (
    Gpu(pci=ONE, nvlinks=("", TWO), path="0/0/0/0/0"),
    Gpu(pci=TWO, nvlinks=(ONE,), path="0/0/0/0/0"),
    Gpu(nvlinks=(SWITCH,), path="0/0/0/0/1"),
    Gpu(nvlinks=(SWITCH,), path="0/0/0/1"),
    Gpu(nvlinks=(OTHER_SWITCH,), path="0/0/1"),
    Gpu(nvlinks=("", TWO), path="0/1"),
    Gpu(path="1"),
    Gpu(),
)


def test_what_connects_gpus(server_of):
    program = """
        nvml.nvmlInit()
        gpus = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(8)]
        say(*[nvml.nvmlDeviceGetP2PStatus(gpus[one], gpus[other], nvml.NVML_P2P_CAPS_INDEX_NVLINK)
              for one, other in [(0, 1), (2, 3), (2, 4), (0, 2), (0, 5), (5, 6)]])
        say(*[ask("nvmlDeviceGetTopologyCommonAncestor", gpus[0], other) for other in gpus[1:]])
        say(ask("nvmlDeviceGetNvLinkState", gpus[0], 0))  # as any that they don't have
    """
    missing, linked, not_linked = "NVMLError_NotSupported", 0, 5
    assert run_nvml(server_of(*CONNECTED), program) == [
        [linked, linked, not_linked, not_linked, not_linked, not_linked],
        # One board, one switch, two switches, one host bridge, one node, two nodes; and where it is not told.
        [0, 10, 20, 30, 40, 50, missing],
        [missing],
    ]


READERS = {
    "name": ("nvmlDeviceGetName",),
    "uuid": ("nvmlDeviceGetUUID",),
    "pci": ("nvmlDeviceGetPciInfo",),
    "memory": ("nvmlDeviceGetMemoryInfo",),
    "utilization": ("nvmlDeviceGetUtilizationRates",),
    "processes": ("nvmlDeviceGetComputeRunningProcesses",),
    "graphics_processes": ("nvmlDeviceGetGraphicsRunningProcesses",),
    "compute_mode": ("nvmlDeviceGetComputeMode",),
    "power": ("nvmlDeviceGetPowerUsage",),
    "samples": ("nvmlDeviceGetSamples", 1, 0),
    "temperature": ("nvmlDeviceGetTemperature", 0),
    "p2p": ("nvmlDeviceGetP2PStatus", "gpu", 2),
    "topology": ("nvmlDeviceGetTopologyCommonAncestor", "gpu"),
}


def test_a_reading_that_a_gpu_lacks_fails_alone(server_of):
    gpus = [Gpu(path="0/0", unsupported=[missing]) for missing in READERS]
    program = f"""
        nvml.nvmlInit()
        for index in range(nvml.nvmlDeviceGetCount()):
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            answers = {{name: ask(function, gpu, *[gpu if each == "gpu" else each for each in rest])
                       for name, (function, *rest) in {READERS!r}.items()}}
            say(*[name for name, answer in answers.items() if answer == "NVMLError_NotSupported"])
    """
    assert run_nvml(server_of(*gpus), program) == [[missing] for missing in READERS]


def test_process_lists_that_tell_less(server_of):
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


@pytest.mark.slow
def test_nvitop_chooses_the_idle_gpu_and_sees_who_holds_the_other(pair):
    base = Path(getattr(sys, "_base_executable", None) or sys.executable)
    python = environments.environment(base, ["nvitop>=1.3"], with_autogpu=False)
    holder = hold(pair, 0, 20 * GIB, **PCI)
    program = (
        "import nvitop; print(nvitop.select_devices(format='index', min_free_memory='8GiB', sort=True));"
        "print(sorted(nvitop.Device(0).processes()))"
    )
    done = pair.run([str(python), "-c", program], environ=PCI)
    assert done.stdout.splitlines() == ["[1]", f"[{holder.pid}]"], done.stderr
