"""How a process comes to CUDA on the simulated GPUs: initialisation, forks, compute modes."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.gpusim import Gpu, Server
from tests.gpusim.build import NAMES, RELEASES
from tests.support import simulator_client
from tests.support.simulator_client import CUDA, PYTHON, run_cuda

pair = simulator_client.pair


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


def test_every_library_is_there_and_all_share_one_driver(pair):
    said = run_cuda(
        pair,
        f"""
        libraries = [ctypes.CDLL(name) for name in {[*RELEASES, *NAMES]}]
        say(len(libraries), all(library.cuInit(0) == 0 for library in libraries), count())
        """,
    )
    assert said == [[len(NAMES) + len(RELEASES), True, 2]]
    assert len(pair.calls(call="cuInit")) == 1


@pytest.mark.parametrize(
    ("library", "version"), [("libcudart.so.12", 12040), ("libcudart.so.11.0", 11080), ("libcudart.so.10.0", 10000)]
)
def test_a_runtime_has_the_version_of_its_name_and_the_driver_its_own(pair, library, version):
    said = run_cuda(
        pair,
        f"""
        runtime, runs, serves = ctypes.CDLL("{library}"), ctypes.c_int(), ctypes.c_int()
        runtime.cudaRuntimeGetVersion(ctypes.byref(runs))
        runtime.cudaDriverGetVersion(ctypes.byref(serves))
        say(runs.value, serves.value)
        """,
    )
    assert said == [[version, 12040]]


@pytest.mark.parametrize(
    ("library", "version"), [("libcudnn.so.9", [9, 30, 0]), ("libcudnn.so.8", [8, 9, 6]), ("libcudnn.so.7", [7, 6, 5])]
)
def test_a_cudnn_has_the_version_of_its_name(pair, library, version):
    said = run_cuda(
        pair,
        f"""
        # Programs built for others may be in the same process.
        others = [ctypes.CDLL(f"libcudnn.so.{{major}}") for major in (7, 8, 9)]
        cudnn, part = ctypes.CDLL("{library}"), ctypes.c_int()
        say(*[cudnn.cudnnGetProperty(which, ctypes.byref(part)) or part.value for which in range(3)])
        say(cudnn.cudnnGetVersion())
        """,
    )
    major, minor, patch = version
    assert said == [version, [major * (10000 if major >= 9 else 1000) + minor * 100 + patch]]


@pytest.mark.parametrize(("library", "at_once"), [("libcudart.so.12", True), ("libcudart.so.11.0", False)])
def test_choosing_a_device_makes_its_context_from_cuda_12_on(pair, library, at_once):
    said = run_cuda(
        pair,
        f"""
        runtime, device = ctypes.CDLL("{library}"), ctypes.c_int()
        say(runtime.cudaFree(None), runtime.cudaSetDevice(1))
        runtime.cudaGetDevice(ctypes.byref(device))
        say(device.value, len(open(os.environ["GPUSIM_LOG"]).readlines()))
        say(runtime.cudaFree(None), len(open(os.environ["GPUSIM_LOG"]).readlines()))
        say(runtime.cudaSetDevice(0), runtime.cudaFree(None), runtime.cudaSetDevice(2))
        """,
        CUDA_DEVICE_ORDER="PCI_BUS_ID",
    )
    init_and_context = 2
    assert said == [[0, 0], [1, init_and_context + at_once], [0, init_and_context + 1], [0, 0, 101]]
    assert [call.gpu for call in pair.calls(call="context")] == [0, 1]


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


@pytest.mark.parametrize(
    ("gpu", "first", "second"),
    [
        pytest.param(Gpu(), 0, 0, id="default"),
        pytest.param(Gpu(compute_mode="exclusive_process"), 0, 46, id="exclusive"),
        pytest.param(Gpu(compute_mode="exclusive_process", processes={5000009: "1MiB"}), 46, 46, id="exclusive-taken"),
        pytest.param(Gpu(compute_mode="exclusive_process", graphics={5000009: "1MiB"}), 0, 46, id="graphics-only"),
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
