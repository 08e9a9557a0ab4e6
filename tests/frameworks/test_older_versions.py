"""The promises that depend on what PyTorch or JAX has to hook into, on older versions and with another plugin."""

import pytest

from tests.support import framework_environments
from tests.support.framework_environments import JAXES, TORCHES, each_older
from tests.support.framework_jobs import FILL, HOLD, USE_SEVERAL
from tests.support.framework_machines import FOUR, GIB, MIB, Installed

OLDER = [(name, each) for name, releases in {"torch": TORCHES, "jax": JAXES}.items() for each in each_older(releases)]

pytestmark = [pytest.mark.framework, pytest.mark.timeout(600)]


@pytest.fixture(
    params=[
        pytest.param((name, *each.values), id=f"{name}-{each.id}", marks=[*each.marks, pytest.mark.xdist_group(name)])
        for name, each in OLDER
    ]
)
def older(request, importers, machine_of):
    """A framework's name, and four GPUs with its older version."""
    framework, release = request.param
    python = framework_environments.with_autogpu(getattr(framework_environments, framework)(release))
    return framework, machine_of(Installed(python, importers[framework]), *FOUR)


def test_it_gets_the_idlest(older):
    framework, machine = older
    ran = machine.run(HOLD[framework])
    assert (ran.exit_status, ran.contexts, len(ran.said)) == (0, [3], 1), ran.stderr
    assert "the idlest of 4" in ran.said[0]


def test_a_limit_is_a_hard_cap(older):
    framework, machine = older
    ran = machine.run(FILL[framework], AUTOGPU_LIMIT="2GiB")
    assert (ran.exit_status, ran.stdout.split()[0]) == (0, "OutOfMemoryError"), ran.stderr
    assert 1.5 * GIB <= ran.peak_bytes(3) <= 2 * GIB + 16 * MIB


def test_count_two_gives_two(older):
    framework, machine = older
    ran = machine.run(USE_SEVERAL[framework].format(count=2), AUTOGPU_COUNT="2")
    assert (ran.exit_status, ran.stdout, ran.contexts) == (0, "ready 2\n", [2, 3]), ran.stderr


def test_count_zero_is_the_cpu(older):
    framework, machine = older
    ran = machine.run(HOLD[framework], AUTOGPU_COUNT="0")
    # JAX 0.4 calls it TFRT_CPU_0.
    assert (ran.exit_status, "cpu" in ran.stdout.lower(), ran.contexts) == (0, True, []), ran.stderr
    assert len(ran.said) == 1


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
