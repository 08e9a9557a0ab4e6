"""How a process comes to CUDA on the simulated GPUs: initialisation, forks, compute modes."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests import gpusim_asking
from tests.gpusim import Gpu, Server
from tests.gpusim_asking import CUDA, PYTHON, run_cuda

pair = gpusim_asking.pair


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
