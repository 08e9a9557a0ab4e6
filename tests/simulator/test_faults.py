"""Simulated GPUs and drivers that fail as real ones do."""

import pytest

from tests.gpusim import Gpu
from tests.support.simulator_client import run_cuda, run_nvml


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("DRIVER_NOT_LOADED", "NVMLError_DriverNotLoaded"),
        ("LIB_RM_VERSION_MISMATCH", "NVMLError_LibRmVersionMismatch"),
        ("NO_PERMISSION", "NVMLError_NoPermission"),
        ("UNKNOWN", "NVMLError_Unknown"),
    ],
)
def test_nvml_fails_to_start_with_the_error_asked_for(server_of, fault, error):
    server = server_of(Gpu(), nvml=fault)
    assert run_nvml(server, "say(ask('nvmlInit'))") == [[error]]
    assert len(server.calls(call="nvmlInit")) == 1
    assert run_cuda(server, "say(cuda.cuInit(0), count())") == [[0, 1]]
    assert server.used_bytes(0) == 0


def test_a_lost_gpu_fails_and_the_others_answer(server_of):
    server = server_of(Gpu(), Gpu(nvml="GPU_IS_LOST"), Gpu())
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


def test_a_forbidden_gpu_is_counted_by_nvml_and_passed_over_by_cuda(server_of):
    server = server_of(Gpu(nvml="NO_PERMISSION"), Gpu())
    program = "nvml.nvmlInit(); say(nvml.nvmlDeviceGetCount(), ask('nvmlDeviceGetHandleByIndex', 0))"
    assert run_nvml(server, program) == [[2, "NVMLError_NoPermission"]]
    assert run_cuda(server, "cuda.cuInit(0); say(count(), uuid(0))") == [[1, server.gpus[1].uuid]]


def test_cuda_fails_to_start_with_the_error_asked_for(server_of):
    server = server_of(Gpu(), cuda_init="SYSTEM_DRIVER_MISMATCH")
    assert run_cuda(server, "say(cuda.cuInit(0), count())") == [[803, 3]]
