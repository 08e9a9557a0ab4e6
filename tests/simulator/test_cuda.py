"""Start of CUDA on the simulated GPUs: environment variables and compute modes."""

import pytest

from tests.gpusim import Gpu
from tests.support.simulator_client import CUDA, PCI, Program, run_cuda


def test_cuda_reads_its_environment_variables_only_in_cuinit(pair):
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
    ("gpu", "first", "second"),
    [
        pytest.param(Gpu(), 0, 0, id="default"),
        pytest.param(Gpu(compute_mode="exclusive_process"), 0, 46, id="exclusive"),
        pytest.param(
            Gpu(compute_mode="exclusive_process", processes={5000009: "1MiB"}),
            46,
            46,
            id="exclusive-with-a-compute-process",
        ),
        pytest.param(
            Gpu(compute_mode="exclusive_process", graphics={5000009: "1MiB"}),
            0,
            46,
            id="exclusive-with-a-graphics-process",
        ),
        pytest.param(Gpu(compute_mode="prohibited"), 46, 46, id="prohibited"),
    ],
)
def test_compute_mode_limits_the_processes_with_a_context(server_of, gpu, first, second):
    server = server_of(gpu)
    # One process may have several contexts, even in exclusive mode.
    again = "context(0) or call('cuCtxCreate_v2', ctypes.byref(ctypes.c_void_p()), 0, 0)"
    holder = Program(server, f"{CUDA}cuda.cuInit(0); say({again}); sys.stdin.readline()")
    assert holder.said() == [first]
    assert run_cuda(server, "cuda.cuInit(0); say(context(0))") == [[second]]
    holder.kill()
    assert run_cuda(server, "cuda.cuInit(0); say(context(0))") == [[first]]
