"""Features that depend on the hooks in PyTorch or JAX, in other releases than the newest and on the newest Python."""

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
    framework, release = request.param
    python = framework_environments.with_autogpu(getattr(framework_environments, framework)(release))
    return framework, machine_of(Installed(python, importers[framework]), *FOUR)


def test_other_release_gets_the_idlest_gpu(other):
    framework, machine = other
    ran = machine.run(HOLD[framework])
    assert (ran.exit_status, ran.contexts, len(ran.said)) == (0, [3], 1), ran.stderr
    assert "the idlest of 4" in ran.said[0]


def test_other_release_can_not_exceed_the_memory_limit(other):
    framework, machine = other
    ran = machine.run(FILL[framework], AUTOGPU_LIMIT="2GiB")
    assert (ran.exit_status, ran.stdout.split()[0]) == (0, "OutOfMemoryError"), ran.stderr
    assert 1.5 * GIB <= ran.peak_bytes(3) <= 2 * GIB + 16 * MIB


def test_other_release_with_count_2_uses_two_gpus(other):
    framework, machine = other
    ran = machine.run(USE_SEVERAL[framework].format(count=2), AUTOGPU_COUNT="2")
    assert (ran.exit_status, ran.stdout, ran.contexts) == (0, "ready 2\n", [2, 3]), ran.stderr


def test_other_release_with_count_0_uses_the_cpu(other):
    framework, machine = other
    ran = machine.run(HOLD[framework], AUTOGPU_COUNT="0")
    # JAX 0.4 calls the CPU TFRT_CPU_0.
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
def test_first_use_after_a_lazy_import_gets_the_idlest_gpu(framework, machine_of):
    base = getattr(framework_environments, framework)(LAZY_RELEASES[framework])
    machine = machine_of(Installed(framework_environments.with_autogpu(base)), *FOUR)
    lazy = HOLD[framework].replace(f"import {framework}", f"lazy import {framework}")
    ran = machine.run(lazy, fresh=True)
    assert (ran.exit_status, ran.contexts, len(ran.said)) == (0, [3], 1), ran.stderr
    all_lazy = ("-X", "lazy_imports=all")
    ran = machine.run(HOLD[framework], launcher=all_lazy)
    if framework == "jax":
        assert (ran.exit_status, ran.contexts, len(ran.said)) == (0, [3], 1), ran.stderr
        # Only the hook on the creation of the client is installed. It can't hide the GPUs, and the line reports that.
        ran = machine.run(HOLD[framework], launcher=all_lazy, AUTOGPU_COUNT="0")
        assert (ran.exit_status, "used, not chosen by autogpu: select.count is 0" in ran.stderr) == (0, True)
    else:
        # PyTorch 2.15 can't be imported with this option, because its modules import each other.
        without = machine.run(HOLD[framework], launcher=all_lazy, AUTOGPU="0")
        assert (ran.exit_status, ran.error) == (without.exit_status, without.error)


# A future JAX may rename this function. Here it is missing when autogpu looks for it, and back when JAX calls it.
WITHOUT_THE_CLIENT = """
import jaxlib.xla_client as client
made = client.make_c_api_client
del client.make_c_api_client
import jax
client.make_c_api_client = made
print(*jax.numpy.ones(3).devices(), jax.local_device_count())
"""


def test_jax_without_the_hooked_function_runs_as_without_autogpu(machine_of):
    machine = machine_of("jax", *FOUR)
    plain = machine.run(WITHOUT_THE_CLIENT, AUTOGPU="0")
    ours = machine.run(WITHOUT_THE_CLIENT)
    assert ours.exit_status == plain.exit_status == 0, ours.stderr
    assert (ours.stdout, ours.contexts, ours.granted) == (plain.stdout, plain.contexts, plain.granted)
    [line] = ours.said
    assert "has no xla_client.make_c_api_client" in line
