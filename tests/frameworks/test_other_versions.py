"""The promises that depend on what PyTorch or JAX has to hook into, in other versions and on the newest Python."""

import pytest

from tests.support import framework_environments
from tests.support.environments import interpreter
from tests.support.framework_environments import JAXES, TORCHES, TURNS, each_other
from tests.support.framework_jobs import FILL, HOLD, USE_SEVERAL
from tests.support.framework_machines import FOUR, GIB, MIB, Installed

OTHERS = [(name, each) for name, releases in {"torch": TORCHES, "jax": JAXES}.items() for each in each_other(releases)]

pytestmark = [pytest.mark.framework, pytest.mark.timeout(600)]


@pytest.fixture(
    params=[
        pytest.param((name, *each.values), id=f"{name}-{each.id}", marks=[*each.marks, pytest.mark.xdist_group(name)])
        for name, each in OTHERS
    ]
)
def other(request, importers, machine_of):
    """Return a framework's name, and a machine with four GPUs and another version of the framework."""
    framework, release = request.param
    python = framework_environments.with_autogpu(getattr(framework_environments, framework)(release))
    return framework, machine_of(Installed(python, importers[framework]), *FOUR)


def test_it_gets_the_idlest(other):
    framework, machine = other
    ran = machine.run(HOLD[framework])
    assert (ran.exit_status, ran.contexts, len(ran.said)) == (0, [3], 1), ran.stderr
    assert "the idlest of 4" in ran.said[0]


def test_a_limit_is_a_hard_cap(other):
    framework, machine = other
    ran = machine.run(FILL[framework], AUTOGPU_LIMIT="2GiB")
    assert (ran.exit_status, ran.stdout.split()[0]) == (0, "OutOfMemoryError"), ran.stderr
    assert 1.5 * GIB <= ran.peak_bytes(3) <= 2 * GIB + 16 * MIB


def test_count_two_gives_two(other):
    framework, machine = other
    ran = machine.run(USE_SEVERAL[framework].format(count=2), AUTOGPU_COUNT="2")
    assert (ran.exit_status, ran.stdout, ran.contexts) == (0, "ready 2\n", [2, 3]), ran.stderr


def test_count_zero_is_the_cpu(other):
    framework, machine = other
    ran = machine.run(HOLD[framework], AUTOGPU_COUNT="0")
    # JAX 0.4 calls it TFRT_CPU_0.
    assert (ran.exit_status, "cpu" in ran.stdout.lower(), ran.contexts) == (0, True, []), ran.stderr
    assert len(ran.said) == 1


LAZY_RELEASES = {
    name: release
    for name, releases in {"torch": TORCHES, "jax": JAXES}.items()
    for release in releases
    if release.python == "3.15"
}


@pytest.mark.skipif(interpreter("3.15") is None, reason="no Python 3.15 on this machine")
@pytest.mark.turns(TURNS)
@pytest.mark.parametrize("framework", LAZY_RELEASES)
def test_it_gets_the_idlest_by_its_first_use_after_a_lazy_import(framework, machine_of):
    base = getattr(framework_environments, framework)(LAZY_RELEASES[framework])
    machine = machine_of(Installed(framework_environments.with_autogpu(base)), *FOUR)
    lazy = HOLD[framework].replace(f"import {framework}", f"lazy import {framework}")
    ran = machine.run(lazy, fresh=True)
    assert (ran.exit_status, ran.contexts, len(ran.said)) == (0, [3], 1), ran.stderr
    all_lazy = ("-X", "lazy_imports=all")
    ran = machine.run(HOLD[framework], launcher=all_lazy)
    if framework == "jax":
        assert (ran.exit_status, ran.contexts, len(ran.said)) == (0, [3], 1), ran.stderr
        # Only the hook that makes the client is there. It can't keep JAX from the GPUs, and the line says so.
        ran = machine.run(HOLD[framework], launcher=all_lazy, AUTOGPU_COUNT="0")
        assert (ran.exit_status, "taken as without autogpu: select.count is 0" in ran.stderr) == (0, True)
    else:
        # PyTorch 2.15 can't be imported with this option, because its modules import each other.
        without = machine.run(HOLD[framework], launcher=all_lazy, AUTOGPU="0")
        assert (ran.exit_status, ran.error) == (without.exit_status, without.error)


# A version to come may have renamed it; here it is back when JAX itself looks for it.
WITHOUT_THE_CLIENT = """
import jaxlib.xla_client as client
made = client.make_c_api_client
del client.make_c_api_client
import jax
client.make_c_api_client = made
print(*jax.numpy.ones(3).devices(), jax.local_device_count())
"""


def test_a_jax_that_can_not_be_hooked_into_runs_as_without_and_says_so_in_one_line(machine_of):
    machine = machine_of("jax", *FOUR)
    plain = machine.run(WITHOUT_THE_CLIENT, AUTOGPU="0")
    ours = machine.run(WITHOUT_THE_CLIENT)
    assert ours.exit_status == plain.exit_status == 0, ours.stderr
    assert (ours.stdout, ours.contexts, ours.granted) == (plain.stdout, plain.contexts, plain.granted)
    [line] = ours.said
    assert "has no xla_client.make_c_api_client" in line
