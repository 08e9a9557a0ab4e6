"""Memory on the simulated GPUs: who gets how much, and when it is free again."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap

import pytest

from tests.gpusim import Gpu, Server
from tests.support import simulator_client
from tests.support.simulator_client import CUDA, GIB, MIB, PYTHON, hold, run_cuda

nvml_python, run_nvml, pair = simulator_client.nvml_python, simulator_client.run_nvml, simulator_client.pair


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
