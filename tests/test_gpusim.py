"""The simulated GPU server, asked as programs ask it: through ctypes and nvidia-ml-py, in processes of their own."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Iterator

import pytest

from tests import environments
from tests.gpusim import FleetError, Gpu, Server, read_fleet

MIB, GIB = 2**20, 2**30
ROOT = Path(__file__).resolve().parent.parent
PYTHON = sys.executable

# ---- programs that run on the server ----

CUDA = """
import ctypes, json, os, sys
cuda = ctypes.CDLL("libcuda.so.1")

def call(name, *arguments):
    return getattr(cuda, name)(*arguments)

def count():
    value = ctypes.c_int(-1)
    return call("cuDeviceGetCount", ctypes.byref(value)) or value.value

def uuid(device, function="cuDeviceGetUuid"):
    raw = (ctypes.c_ubyte * 16)()
    assert call(function, raw, device) == 0
    text = bytes(raw).hex()
    return "GPU-" + "-".join([text[:8], text[8:12], text[12:16], text[16:20], text[20:]])

def context(device):
    made = ctypes.c_void_p()
    return call("cuDevicePrimaryCtxRetain", ctypes.byref(made), device) or call("cuCtxSetCurrent", made)

def allocate(size):
    address = ctypes.c_uint64()
    error = call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
    return error, address

def say(*values):
    print(json.dumps(values), flush=True)
"""
NVML = """
import itertools, json, os, sys, time
import pynvml as nvml

def say(*values):
    print(json.dumps(values), flush=True)

def ask(function, *arguments):
    try:
        return getattr(nvml, function)(*arguments)
    except nvml.NVMLError as error:
        return type(error).__name__
"""
# Takes memory on a GPU, says so, and keeps it until a line comes in.
HOLDER = CUDA + "cuda.cuInit(0); say(context({device}), allocate({size})[0]); sys.stdin.readline()"


def lines_of(done: subprocess.CompletedProcess[str]) -> list[list]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def run_cuda(server: Server, program: str, **environ: str) -> list[list]:
    return lines_of(server.run([PYTHON, "-c", CUDA + textwrap.dedent(program)], environ=environ))


def hold(server: Server, device: int, size: int, **environ: str) -> subprocess.Popen:
    program = HOLDER.format(device=device, size=size)
    holder = server.popen([PYTHON, "-c", program], environ=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert json.loads(holder.stdout.readline()) == [0, 0]
    return holder


@pytest.fixture(scope="session")
def nvml_python() -> Path:
    base = Path(getattr(sys, "_base_executable", None) or sys.executable)
    return environments.environment(base, ["nvidia-ml-py"], with_autogpu=False)


@pytest.fixture
def run_nvml(nvml_python: Path):
    def run(server: Server, program: str) -> list[list]:
        return lines_of(server.run([str(nvml_python), "-c", NVML + textwrap.dedent(program)]))

    return run


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Server]:
    with Server([Gpu(), Gpu(name="NVIDIA A100", memory="40GiB")], folder=tmp_path) as server:
        yield server


# ---- what NVML says of the fleet ----


def test_nvml_describes_each_gpu_of_the_fleet(tmp_path, run_nvml):
    gpus = [
        Gpu(name="NVIDIA GeForce GTX 1080 Ti", memory="11GiB", compute_capability="6.1", pci="0000:05:00.0"),
        Gpu(used="2GiB", processes={4242: "3GiB"}, graphics={77: "64MiB"}, utilization=60),
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
        *([[4242, 3 * GIB]], [[77, 64 * MIB]], missing),
    ]


@pytest.mark.parametrize("end", ["exit", "kill"])
def test_memory_rises_with_an_allocation_elsewhere_and_falls_when_that_process_ends(pair, run_nvml, end):
    look = """
        nvml.nvmlInit()
        gpu = nvml.nvmlDeviceGetHandleByIndex(1)
        say(nvml.nvmlDeviceGetMemoryInfo(gpu).used, nvml.nvmlDeviceGetMemoryInfo(gpu, version=2).used)
        say(*[[p.pid, p.usedGpuMemory] for p in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)])
    """
    used = GIB + 256 * MIB
    holder = hold(pair, 1, GIB, CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert run_nvml(pair, look) == [[used, used], [[holder.pid, used]]]
    assert [pair.used_bytes(0), pair.used_bytes(1)] == [0, used]
    assert pair.contexts() == {holder.pid: [1]}
    if end == "exit":
        holder.communicate("\n", timeout=30)
    else:
        holder.kill()
        # Unreaped on purpose: a zombie has no memory either.
        os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
    assert run_nvml(pair, look) == [[0, 0], []]


def test_memory_is_free_again_after_free_and_after_the_context_ends(pair):
    said = run_cuda(
        pair,
        """
        cuda.cuInit(0)
        context(0)
        error, address = allocate(64 << 20)
        say(error, call("cuMemFree_v2", address), call("cuDevicePrimaryCtxRelease_v2", 0))
        say(call("cuDevicePrimaryCtxRelease_v2", 0))
        """,
    )
    assert said == [[0, 0, 0], [201]]
    calls = [(call.call, call.gpu, call.bytes) for call in pair.calls()]
    assert calls == [
        ("cuInit", None, None),
        ("context", 0, 256 * MIB),
        ("allocate", 0, 64 * MIB),
        ("free", 0, 64 * MIB),
        ("context_end", 0, 256 * MIB),
    ]


def test_a_program_that_execs_another_gives_its_memory_back(pair):
    program = CUDA + "cuda.cuInit(0); context(0); allocate(1 << 30); os.execl(sys.executable, 'python', '-c', %r)"
    again = CUDA + "cuda.cuInit(0); say(context(0), os.getpid()); sys.stdin.readline()"
    child = pair.popen([PYTHON, "-c", program % again], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert json.loads(child.stdout.readline()) == [0, child.pid]
    assert pair.used_bytes(0) == 256 * MIB


def test_processes_together_never_get_more_than_there_is(tmp_path):
    greedy = CUDA + textwrap.dedent(
        """
        cuda.cuInit(0)
        say(context(0))
        sys.stdin.readline()
        got = 0
        while allocate(10 << 20)[0] == 0:
            got += 10 << 20
        say(got)
        sys.stdin.readline()
        """
    )
    with Server([Gpu(memory="2GiB", used="100MiB")], folder=tmp_path, context="50MiB") as server:
        children = [
            server.popen([PYTHON, "-c", greedy], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(4)
        ]
        assert [json.loads(child.stdout.readline()) for child in children] == [[0]] * 4
        for child in children:
            child.stdin.write("go\n")
            child.stdin.flush()
        got = [json.loads(child.stdout.readline())[0] for child in children]
        room = 2 * GIB - 100 * MIB - 4 * 50 * MIB
        assert room - 10 * MIB < sum(got) <= room
        assert server.used_bytes(0) == sum(got) + 300 * MIB
        # Each line of the log is whole, though four processes wrote at once.
        allocated = sum(call.bytes for call in server.calls(call="allocate"))
        assert allocated == sum(got)
        assert {call.pid for call in server.calls(call="refused")} == {child.pid for child in children}


def test_a_context_needs_room_too(tmp_path):
    with Server([Gpu(memory="1GiB", used="900MiB")], folder=tmp_path) as server:
        assert run_cuda(server, "cuda.cuInit(0); say(context(0))") == [[2]]
        assert server.contexts() == {}


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
    pair.change(0, utilization=75, processes={31: "1GiB"})
    watcher.stdin.write("again\n")
    watcher.stdin.flush()
    assert json.loads(watcher.stdout.readline()) == [75, GIB, [31]]
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


# ---- faults ----


def init_result(server: Server, run_nvml) -> str:
    return run_nvml(server, "say(ask('nvmlInit'))")[0][0]


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("DRIVER_NOT_LOADED", "NVMLError_DriverNotLoaded"),
        ("LIB_RM_VERSION_MISMATCH", "NVMLError_LibRmVersionMismatch"),
        ("NO_PERMISSION", "NVMLError_NoPermission"),
        ("UNKNOWN", "NVMLError_Unknown"),
    ],
)
def test_nvml_fails_to_start_with_the_error_asked_for(tmp_path, run_nvml, fault, error):
    with Server([Gpu()], folder=tmp_path, nvml=fault) as server:
        assert init_result(server, run_nvml) == error
        assert len(server.calls(call="nvmlInit")) == 1
        assert run_cuda(server, "say(cuda.cuInit(0), count())") == [[0, 1]]
        assert server.used_bytes(0) == 0


def test_nvml_that_crashes_takes_its_process_down(tmp_path, nvml_python):
    with Server([Gpu()], folder=tmp_path, nvml="crash") as server:
        done = server.run([str(nvml_python), "-c", NVML + "nvml.nvmlInit()"])
    assert done.returncode == -signal.SIGABRT


@pytest.mark.parametrize("where", ["machine", "gpu"])
def test_nvml_that_hangs_never_answers(tmp_path, nvml_python, where):
    gpus = [Gpu(), Gpu(nvml="hang" if where == "gpu" else "")]
    program = NVML + textwrap.dedent(
        """
        nvml.nvmlInit()
        nvml.nvmlDeviceGetHandleByIndex(0)
        say("one")
        nvml.nvmlDeviceGetHandleByIndex(1)
        """
    )
    with Server(gpus, folder=tmp_path, nvml="hang" if where == "machine" else "") as server:
        with pytest.raises(subprocess.TimeoutExpired) as caught:
            server.run([str(nvml_python), "-c", program], timeout=2)
        assert bool(caught.value.stdout) == (where == "gpu")
        assert len(server.calls(call="nvmlInit")) == 1


def test_a_lost_gpu_fails_and_the_others_answer(tmp_path, run_nvml):
    with Server([Gpu(), Gpu(nvml="GPU_IS_LOST"), Gpu()], folder=tmp_path) as server:
        said = run_nvml(
            server,
            """
            nvml.nvmlInit()
            found = [ask("nvmlDeviceGetHandleByIndex", index) for index in range(nvml.nvmlDeviceGetCount())]
            say(*[each if isinstance(each, str) else nvml.nvmlDeviceGetIndex(each) for each in found])
            """,
        )
        assert said == [[0, "NVMLError_GpuIsLost", 2]]
        assert run_cuda(server, "say(cuda.cuInit(0), count(), context(0), context(1))") == [[0, 3, 0, 999]]


def test_a_gpu_is_lost_while_a_program_watches_it(pair, nvml_python):
    program = NVML + textwrap.dedent(
        """
        nvml.nvmlInit()
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        say(ask("nvmlDeviceGetName", gpu))
        sys.stdin.readline()
        say(ask("nvmlDeviceGetName", gpu))
        """
    )
    watcher = pair.popen([str(nvml_python), "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert json.loads(watcher.stdout.readline()) == ["NVIDIA TITAN RTX"]
    pair.change(0, nvml="GPU_IS_LOST")
    assert json.loads(watcher.communicate("\n", timeout=30)[0]) == ["NVMLError_GpuIsLost"]


def test_a_forbidden_gpu_is_counted_by_nvml_and_passed_over_by_cuda(tmp_path, run_nvml):
    with Server([Gpu(nvml="NO_PERMISSION"), Gpu()], folder=tmp_path) as server:
        said = run_nvml(
            server,
            "nvml.nvmlInit(); say(nvml.nvmlDeviceGetCount(), ask('nvmlDeviceGetHandleByIndex', 0))",
        )
        assert said == [[2, "NVMLError_NoPermission"]]
        assert run_cuda(server, "cuda.cuInit(0); say(count(), uuid(0))") == [[1, server.gpus[1].uuid]]


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
    gpu = Gpu(processes={9: "1GiB"}, graphics={8: "1MiB"})
    given = dataclasses.replace(gpu, **fault) if level == "gpu" else gpu
    with Server([given], folder=tmp_path, **(fault if level == "fleet" else {})) as server:
        assert run_nvml(server, PROCESSES) == [compute, graphics, [GIB + MIB]]


@pytest.mark.parametrize(
    ("gpu", "first", "second"),
    [
        pytest.param(Gpu(), 0, 0, id="default"),
        pytest.param(Gpu(compute_mode="exclusive_process"), 0, 46, id="exclusive"),
        pytest.param(Gpu(compute_mode="exclusive_process", processes={9: "1MiB"}), 46, 46, id="exclusive-taken"),
        pytest.param(Gpu(compute_mode="exclusive_process", graphics={9: "1MiB"}), 0, 46, id="graphics-dont-count"),
        pytest.param(Gpu(compute_mode="prohibited"), 46, 46, id="prohibited"),
    ],
)
def test_compute_modes(tmp_path, gpu, first, second):
    with Server([gpu], folder=tmp_path) as server:
        program = CUDA + "cuda.cuInit(0); say(context(0)); sys.stdin.readline()"
        holder = server.popen([PYTHON, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert json.loads(holder.stdout.readline()) == [first]
        assert run_cuda(server, "cuda.cuInit(0); say(context(0))") == [[second]]
        holder.kill()
        holder.wait(timeout=30)
        assert run_cuda(server, "cuda.cuInit(0); say(context(0))") == [[first]]


def test_cuda_fails_to_start_with_the_error_asked_for(tmp_path):
    with Server([Gpu()], folder=tmp_path, cuda_init="SYSTEM_DRIVER_MISMATCH") as server:
        assert run_cuda(server, "say(cuda.cuInit(0), count())") == [[803, 3]]


# ---- initialisation ----


def test_nothing_works_before_cuinit_but_versions(pair):
    said = run_cuda(
        pair,
        """
        version = ctypes.c_int()
        say(call("cuDriverGetVersion", ctypes.byref(version)), version.value)
        say(count(), context(0), allocate(1)[0], call("cuDeviceGetName", None, 0, 0))
        say(cuda.cuInit(0), count())
        """,
    )
    assert said == [[0, 12040], [3, 3, 3, 3], [0, 2]]


def test_the_runtime_initialises_by_itself(pair):
    said = run_cuda(
        pair,
        """
        runtime = ctypes.CDLL("libcudart.so.12")
        value = ctypes.c_int()
        say(runtime.cudaGetDeviceCount(ctypes.byref(value)), value.value, count(), runtime.cudaFree(None))
        """,
    )
    assert said == [[0, 2, 2, 0]]
    assert [call.call for call in pair.calls()] == ["cuInit", "context"]


def test_the_environment_counts_at_cuinit_and_not_later(pair):
    said = run_cuda(
        pair,
        """
        os.environ["CUDA_VISIBLE_DEVICES"] = "1"
        cuda.cuInit(0)
        os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
        say(cuda.cuInit(0), count(), uuid(0), uuid(0, "cuDeviceGetUuid_v2"))
        """,
        CUDA_VISIBLE_DEVICES="0,1",
        CUDA_DEVICE_ORDER="PCI_BUS_ID",
    )
    assert said == [[0, 1, pair.gpus[1].uuid, pair.gpus[1].uuid]]


FORK = """
    if {first}:
        cuda.cuInit(0)
    child = os.fork()
    if child == 0:
        runtime = ctypes.CDLL("libcudart.so.12")
        say(cuda.cuInit(0), count(), context(0), runtime.cudaGetDeviceCount(ctypes.byref(ctypes.c_int())))
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_a_forked_child_of_an_initialised_process_has_no_cuda(pair):
    assert run_cuda(pair, FORK.format(first=True)) == [[3, 3, 3, 3]]


def test_a_forked_child_of_an_uninitialised_process_has_cuda(pair):
    assert run_cuda(pair, FORK.format(first=False)) == [[0, 2, 0, 0]]


# ---- visible devices ----

UUIDS = [
    "GPU-aaaa0000-1111-2222-3333-444444444444",
    "GPU-bbbb0000-1111-2222-3333-444444444444",
    "GPU-bbbb1111-1111-2222-3333-444444444444",
    "GPU-cccc0000-1111-2222-3333-444444444444",
]


@pytest.fixture(scope="module")
def four(tmp_path_factory) -> Iterator[Server]:
    gpus = [
        Gpu(uuid=UUIDS[0], compute_capability="6.1", multiprocessors=28),
        Gpu(uuid=UUIDS[1], compute_capability="7.5", multiprocessors=46),
        Gpu(uuid=UUIDS[2], compute_capability="7.5", multiprocessors=72),
        Gpu(uuid=UUIDS[3], compute_capability="6.1", multiprocessors=20),
    ]
    with Server(gpus, folder=tmp_path_factory.mktemp("four")) as server:
        yield server


def seen(server: Server, **environ: str) -> list[int]:
    program = """
        error = cuda.cuInit(0)
        say(*([uuid(i) for i in range(count())] if error == 0 else [error]))
    """
    said = run_cuda(server, program, **environ)[0]
    uuids = [gpu.uuid for gpu in server.gpus]
    return [] if said == [100] else [uuids.index(each) for each in said]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        pytest.param("", [], id="empty-hides-all"),
        pytest.param("2,1", [2, 1], id="order-of-the-list"),
        pytest.param("-1", [], id="minus-one"),
        pytest.param("-1,0", [], id="invalid-entry-first"),
        pytest.param("0,2,-1,1", [0, 2], id="invalid-entry-ends"),
        pytest.param("0,9,1", [0], id="out-of-range-ends"),
        pytest.param("0,,1", [0], id="empty-entry-ends"),
        pytest.param("0,", [0], id="trailing-comma"),
        pytest.param("1,1", [], id="twice-hides-all"),
        pytest.param("0,1,0", [], id="twice-later-hides-all"),
        pytest.param("0,9,0", [0], id="ended-before-twice"),
        pytest.param("NoDevFiles", [], id="no-number"),
        pytest.param("0,NoDevFiles,1", [0], id="no-number-later"),
        pytest.param("1gpu2,2ampere", [1, 2], id="read-like-strtol"),
        pytest.param(" 3 , 0 ", [3, 0], id="spaces"),
        pytest.param("+1", [1], id="plus"),
        pytest.param(f"{UUIDS[3]},{UUIDS[0]}", [3, 0], id="uuids"),
        pytest.param("GPU-c,GPU-a", [3, 0], id="unique-prefix"),
        pytest.param("GPU-bbbb1", [2], id="longer-prefix"),
        pytest.param("GPU-b", [], id="ambiguous-prefix"),
        pytest.param("GPU-a,GPU-b,GPU-c", [0], id="ambiguous-prefix-ends"),
        pytest.param("GPU-a,GPU-aaaa", [], id="twice-by-prefix-hides-all"),
        pytest.param("GPU-dddd", [], id="unknown-uuid"),
        pytest.param("0,GPU-c", [0], id="index-then-uuid"),
        pytest.param("GPU-c,0", [3], id="uuid-then-index"),
        pytest.param("MIG-GPU-aaaa0000/0/0", [], id="no-mig"),
    ],
)
def test_visible_devices(four, visible, expected):
    assert seen(four, CUDA_VISIBLE_DEVICES=visible, CUDA_DEVICE_ORDER="PCI_BUS_ID") == expected


def test_an_empty_entry_is_no_prefix_of_the_only_gpu(tmp_path):
    with Server([Gpu(uuid=UUIDS[0])], folder=tmp_path) as server:
        assert seen(server, CUDA_VISIBLE_DEVICES="GPU-a,") == [0]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({}, [2, 1, 0, 3], id="fastest-first"),
        pytest.param({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, [2, 1, 0, 3], id="fastest-first-said"),
        pytest.param({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, [0, 1, 2, 3], id="pci"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "0,3"}, [2, 3], id="indices-follow-the-order"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-c"}, [0, 3], id="uuids-dont"),
    ],
)
def test_device_order(four, environ, expected):
    assert seen(four, **environ) == expected


def test_equal_gpus_stand_in_pci_order_and_speed_overrules(tmp_path):
    with Server([Gpu(), Gpu(), Gpu(speed=2_000_000)], folder=tmp_path) as server:
        assert seen(server) == [2, 0, 1]


def test_the_log_counts_gpus_in_pci_order(four):
    run_cuda(four, "cuda.cuInit(0); context(0); allocate(1 << 20)", CUDA_VISIBLE_DEVICES="0")
    pid = four.calls()[-1].pid
    assert [(call.call, call.gpu) for call in four.calls(pid=pid)] == [
        ("cuInit", None),
        ("context", 2),
        ("allocate", 2),
    ]
    times = [call.time_s for call in four.calls(pid=pid)]
    assert times == sorted(times)
    assert times[-1] <= time.monotonic()


# ---- the server itself ----


def test_a_started_program_ends_with_the_server(tmp_path):
    with Server([Gpu()], folder=tmp_path) as server:
        child = server.popen([PYTHON, "-c", "import sys; sys.stdin.readline()"], stdin=subprocess.PIPE)
    assert child.returncode == -signal.SIGKILL


def test_library_paths_of_others_stay_behind_ours(pair):
    shown = pair.run(
        [PYTHON, "-c", "import os; print(os.environ['LD_LIBRARY_PATH'])"], environ={"LD_LIBRARY_PATH": "/x"}
    )
    assert shown.stdout.strip() == f"{pair.environ['LD_LIBRARY_PATH'].split(':')[0]}:/x"


def test_a_second_server_in_a_folder_begins_anew(tmp_path):
    for _ in range(2):
        with Server([Gpu()], folder=tmp_path) as server:
            assert server.calls() == []
            assert run_cuda(server, "say(cuda.cuInit(0))") == [[0]]


def test_files_are_open_to_other_users(pair):
    assert Path(pair.environ["GPUSIM_STATE"]).stat().st_mode & 0o777 == 0o666
    assert Path(pair.environ["GPUSIM_LOG"]).stat().st_mode & 0o777 == 0o666


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"memory": "24Gigs"}, "memory: '24Gigs' is not a size"),
        ({"utilization": 101}, "utilization: 101 is not a whole number from 0 to 100"),
        ({"nvml": "LIBRARY_NOT_FOUND"}, "nvml: 'LIBRARY_NOT_FOUND' is not"),
        ({"unsupported": ["colour"]}, "unsupported: ['colour'] is not a list out of name,"),
        ({"compute_mode": "shared"}, "compute_mode: 'shared' is not one of default,"),
        ({"processes": {"x": "1GiB"}}, "processes: {'x': '1GiB'} is not"),
        ({"uuid": "GPU-1"}, "uuid: 'GPU-1' is not a UUID"),
        ({"pci": "5"}, "pci: '5' is not an address"),
    ],
)
def test_an_impossible_gpu_is_refused_by_its_key(fields, message):
    with pytest.raises(FleetError) as caught:
        Gpu(**fields)
    assert str(caught.value).startswith(message)


def test_gpus_out_of_pci_order_are_refused(tmp_path):
    with pytest.raises(FleetError, match=r"gpu 1: pci: 0000:04:00.0 is not after that of the GPU before"):
        Server([Gpu(pci="0000:05:00.0"), Gpu(pci="0000:04:00.0")], folder=tmp_path)


# ---- the command ----


def command(*arguments: str, **kwargs) -> subprocess.CompletedProcess:
    program = [PYTHON, "-m", "tests.gpusim", *arguments]
    return subprocess.run(program, capture_output=True, text=True, cwd=ROOT, timeout=60, **kwargs)


def test_the_shipped_lab_shows_every_key():
    lab = (ROOT / "tests" / "gpusim" / "lab.toml").read_text()
    fleet = read_fleet(ROOT / "tests" / "gpusim" / "lab.toml")
    assert len({gpu.name for gpu in fleet.gpus}) == 4
    assert sum(1 for gpu in fleet.gpus if gpu.processes or gpu.used) == 2
    for kind in (type(fleet), Gpu):
        for field in dataclasses.fields(kind):
            assert field.name == "gpus" or f"{field.name} =" in lab, field.name


def test_a_command_keeps_its_status_and_its_input_and_output():
    done = command("--", PYTHON, "-c", "import sys; print(sys.stdin.read()); sys.exit(7)", input="hello")
    assert (done.returncode, done.stdout, done.stderr) == (7, "hello\n", "")


def test_a_command_that_a_signal_ends_is_seen_to_be():
    done = command("--", PYTHON, "-c", "import os; os.kill(os.getpid(), 15)")
    assert done.returncode == -signal.SIGTERM


def test_a_command_has_the_default_lab_and_leaves_a_log(tmp_path):
    log = tmp_path / "calls"
    done = command("--log", str(log), "--", PYTHON, "-c", CUDA + "say(cuda.cuInit(0), count())")
    assert lines_of(done) == [[0, 4]]
    assert [json.loads(line)["call"] for line in log.read_text().splitlines()] == ["cuInit"]


def test_an_edited_fleet_moves_the_load_under_a_running_command(tmp_path, nvml_python):
    fleet = tmp_path / "lab.toml"
    fleet.write_text('[[gpu]]\nname = "one"\n')
    program = NVML + textwrap.dedent(
        """
        nvml.nvmlInit()
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        say(nvml.nvmlDeviceGetName(gpu), os.path.dirname(os.environ["GPUSIM_FLEET"]))
        deadline = time.monotonic() + 20
        while nvml.nvmlDeviceGetUtilizationRates(gpu).gpu != 88 and time.monotonic() < deadline:
            time.sleep(0.02)
        say(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu)
        """
    )
    arguments = [PYTHON, "-m", "tests.gpusim", "--fleet", str(fleet), "--", str(nvml_python), "-c", program]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(arguments, cwd=ROOT, text=True, **pipes) as running:
        try:
            name, folder = json.loads(running.stdout.readline())
            assert name == "one"
            fleet.write_text("[[gpu]]\nutilisation = 88\n")
            complaint = running.stderr.readline()
            fleet.write_text('[[gpu]]\nname = "one"\nutilization = 88\n')
            # Reading to the end of both also waits for the process that watched the file.
            output, errors = running.communicate(timeout=40)
        finally:
            running.kill()
    assert complaint.startswith(f"gpusim: {fleet}: gpu 0: utilisation: no such key; there are name, memory,")
    assert (json.loads(output), errors) == ([88], "")
    assert not Path(folder).exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[gpu]\n", "Expected"),
        ("memory = 3\n", "memory: no such key; there are driver,"),
        ("[[gpu]]\n[[gpu]]\nutilization = 'high'\n", "gpu 1: utilization: 'high' is not a whole number"),
        ("[gpu]\nname = 'x'\n", "gpu: write each GPU as a table [[gpu]]"),
        ("[[gpu]]\nprocesses = { me = '1GiB' }\n", "gpu 0: processes: {'me': '1GiB'} is not"),
    ],
)
def test_a_wrong_fleet_is_one_line_that_names_file_and_key(tmp_path, text, message):
    fleet = tmp_path / "lab.toml"
    fleet.write_text(text)
    done = command("--fleet", str(fleet), "--", "true")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"gpusim: {fleet}: {message}")
    assert done.stderr.count("\n") == 1


def test_a_missing_fleet_or_command_is_said():
    assert command("--fleet", "/no/such.toml", "--", "true").stderr.count("/no/such.toml") == 1
    assert command().returncode == 2
    assert command("--", "no-such-program").returncode == 127


def test_help_teaches_with_an_example():
    assert "python -m tests.gpusim --fleet my-lab.toml --log calls.jsonl -- python train.py" in command("--help").stdout


def test_without_a_compiler_the_remedy_is_named(tmp_path):
    environ = {**os.environ, "CC": "no-such-cc", "AUTOGPU_TEST_CACHE": str(tmp_path)}
    done = command("--", "true", env=environ)
    assert done.returncode == 126
    assert done.stderr == "gpusim: no C compiler: no-such-cc not found; install gcc or name one in CC\n"


# ---- tools that people use ----


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
