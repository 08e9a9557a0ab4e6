"""Memory of the simulated GPUs, shared by several processes."""

import textwrap

from tests.gpusim import Gpu
from tests.support.simulator_client import CUDA, GIB, MIB, Program


def test_processes_never_get_more_memory_than_the_gpu_has(server_of):
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
    # Four processes wrote to the log at the same time, and each line is complete.
    assert sum(call.bytes for call in server.calls(call="allocate")) == got
    assert {call.pid for call in server.calls(call="refused")} == {child.pid for child in children}
