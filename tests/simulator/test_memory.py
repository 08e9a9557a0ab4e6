"""Memory on the simulated GPUs: who gets how much, and when it is free again."""

import textwrap

import pytest

from tests.gpusim import Gpu
from tests.support.simulator_client import CUDA, GIB, MIB, PCI, PYTHON, Program, hold, run_cuda, run_nvml


@pytest.mark.parametrize("end", ["exit", "kill"])
def test_memory_rises_with_an_allocation_elsewhere_and_falls_when_that_process_ends(pair, end):
    look = """
        nvml.nvmlInit()
        gpu = nvml.nvmlDeviceGetHandleByIndex(1)
        say(nvml.nvmlDeviceGetMemoryInfo(gpu).used, nvml.nvmlDeviceGetMemoryInfo(gpu, version=2).used)
        say(*[[p.pid, p.usedGpuMemory] for p in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)])
    """
    used = GIB + 256 * MIB
    holder = hold(pair, 1, GIB, **PCI)
    assert run_nvml(pair, look) == [[used, used], [[holder.pid, used]]]
    assert [pair.used_bytes(0), pair.used_bytes(1)] == [0, used]
    assert pair.contexts() == {holder.pid: [1]}
    if end == "exit":
        holder.end()
    else:
        # A zombie has no memory either.
        holder.kill_unreaped()
    assert run_nvml(pair, look) == [[0, 0], []]


def test_memory_is_free_again_after_free_and_after_the_context_ends(pair):
    said = run_cuda(
        pair,
        """
        cuda.cuInit(0)
        context(0)
        used = lambda: cuda.gpusim_used_bytes(0) >> 20
        error, address = allocate(63 << 20)  # in steps of 2 MiB
        say(error, used(), call("cuMemFree_v2", address), used(), call("cuDevicePrimaryCtxRelease_v2", 0), used())
        say(call("cuDevicePrimaryCtxRelease_v2", 0))
        """,
    )
    assert said == [[0, 320, 0, 256, 0, 0], [201]]
    calls = [(call.call, call.gpu, call.bytes) for call in pair.calls()]
    assert calls == [
        ("cuInit", None, None),
        ("context", 0, 256 * MIB),
        ("allocate", 0, 64 * MIB),
        ("free", 0, 64 * MIB),
        ("context_end", 0, 256 * MIB),
    ]


def test_a_program_that_execs_another_gives_its_memory_back(pair):
    again = CUDA + "cuda.cuInit(0); say(context(0), os.getpid()); sys.stdin.readline()"
    program = f"cuda.cuInit(0); context(0); allocate(1 << 30); os.execl({PYTHON!r}, 'python', '-c', {again!r})"
    child = Program(pair, CUDA + program)
    assert child.said() == [0, child.pid]
    assert pair.used_bytes(0) == 256 * MIB


def test_processes_together_never_get_more_than_there_is(server_of):
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
    server = server_of(Gpu(memory="2GiB", used="100MiB"), context="50MiB")
    children = [Program(server, greedy) for _ in range(4)]
    assert [child.said() for child in children] == [[0]] * 4
    for child in children:
        child.go_on()
    got = sum(child.said()[0] for child in children)
    room = 2 * GIB - 100 * MIB - 4 * 50 * MIB
    assert room - 10 * MIB < got <= room
    assert server.used_bytes(0) == got + 300 * MIB
    # Each line of the log is whole, though four processes wrote at once.
    assert sum(call.bytes for call in server.calls(call="allocate")) == got
    assert {call.pid for call in server.calls(call="refused")} == {child.pid for child in children}


def test_a_context_needs_room_too(server_of):
    server = server_of(Gpu(memory="1GiB", used="900MiB"))
    assert run_cuda(server, "cuda.cuInit(0); say(context(0))") == [[2]]
    assert server.contexts() == {}
