"""Memory on the simulated GPUs: who gets how much, and when it is free again."""

import textwrap

from tests.gpusim import Gpu
from tests.support.simulator_client import CUDA, GIB, MIB, Program


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
