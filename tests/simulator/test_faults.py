"""Simulated GPUs and drivers that fail as real ones do."""

from __future__ import annotations

import json
import signal
import subprocess
import textwrap

import pytest

from tests.gpusim import Gpu, Server
from tests.support import simulator_client
from tests.support.simulator_client import NVML, run_cuda

nvml_python, run_nvml, pair = simulator_client.nvml_python, simulator_client.run_nvml, simulator_client.pair


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


def test_cuda_fails_to_start_with_the_error_asked_for(tmp_path):
    with Server([Gpu()], folder=tmp_path, cuda_init="SYSTEM_DRIVER_MISMATCH") as server:
        assert run_cuda(server, "say(cuda.cuInit(0), count())") == [[803, 3]]
