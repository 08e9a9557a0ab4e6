"""How a process comes to CUDA on the simulated GPUs: initialisation, forks, compute modes."""

import pytest

from tests.gpusim import Gpu
from tests.gpusim.build import NAMES, RELEASES
from tests.support.simulator_client import CUDA, PCI, Program, run_cuda


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


def test_a_library_has_the_version_of_its_name_and_the_driver_its_own(pair):
    runtimes = {"libcudart.so.12": 12040, "libcudart.so.11.0": 11080, "libcudart.so.10.0": 10000}
    cudnns = {"libcudnn.so.9": (9, 30, 0, 93000), "libcudnn.so.8": (8, 9, 6, 8906), "libcudnn.so.7": (7, 6, 5, 7605)}
    said = run_cuda(
        pair,
        # Programs built for others may be in the same process.
        f"""
        for runtime in [ctypes.CDLL(name) for name in {list(runtimes)}]:
            runs, serves = ctypes.c_int(), ctypes.c_int()
            runtime.cudaRuntimeGetVersion(ctypes.byref(runs))
            runtime.cudaDriverGetVersion(ctypes.byref(serves))
            say(runs.value, serves.value)
        for cudnn in [ctypes.CDLL(name) for name in {list(cudnns)}]:
            part = ctypes.c_int()
            say(*[cudnn.cudnnGetProperty(which, ctypes.byref(part)) or part.value for which in range(3)],
                cudnn.cudnnGetVersion())
        """,
    )
    assert said == [*([version, 12040] for version in runtimes.values()), *map(list, cudnns.values())]


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
        **PCI,
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
        **PCI,
    )
    assert said == [[0, 1, pair.gpus[1].uuid, pair.gpus[1].uuid]]


@pytest.mark.parametrize(
    ("before", "said"),
    [
        pytest.param("", [0, 2, 0, 0], id="of-an-uninitialised-parent-has-cuda"),
        pytest.param("cuda.cuInit(0)", [3, 3, 3, 3], id="of-an-initialised-one-has-none"),
    ],
)
def test_a_forked_child(pair, before, said):
    program = f"""
        {before}
        if not os.fork():
            runtime = ctypes.CDLL("libcudart.so.12")
            say(cuda.cuInit(0), count(), context(0), runtime.cudaGetDeviceCount(ctypes.byref(ctypes.c_int())))
            os._exit(0)
        os.wait()
    """
    assert run_cuda(pair, program) == [said]


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
def test_compute_modes(server_of, gpu, first, second):
    server = server_of(gpu)
    # One process may have several.
    again = "context(0) or call('cuCtxCreate_v2', ctypes.byref(ctypes.c_void_p()), 0, 0)"
    holder = Program(server, f"{CUDA}cuda.cuInit(0); say({again}); sys.stdin.readline()")
    assert holder.said() == [first]
    assert run_cuda(server, "cuda.cuInit(0); say(context(0))") == [[second]]
    holder.kill()
    assert run_cuda(server, "cuda.cuInit(0); say(context(0))") == [[first]]
