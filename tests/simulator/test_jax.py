"""The simulated GPU server under unmodified JAX. Numbers are garbage there: nothing looks at a loss."""

from __future__ import annotations

import pytest

from tests.simulator.conftest import arenas, each_release
from tests.support import framework_environments
from tests.support.framework_machines import CONTEXT, GIB, MIB

pytestmark = [pytest.mark.framework, pytest.mark.timeout(1200)]

FRAMEWORK = "jax"
ON_ALL = dict.fromkeys(range(4), 6 * GIB)

PRELUDE = """
import jax
import jax.numpy as jnp
import numpy as np

def train(apply, k, x):
    step = jax.jit(jax.grad(lambda k, x: jnp.mean(apply(k, x) ** 2)))
    for _ in range(3):
        k = k - 0.1 * step(k, x)
    return k.shape
"""


@pytest.fixture(scope="module", params=each_release(framework_environments.JAXES))
def python(request):
    return framework_environments.jax(request.param)


def test_an_import_and_a_platform_of_cpus_ask_for_nothing(machine, run):
    program = "say(jnp.zeros(3).tolist(), jax.default_backend())"
    assert run(program, fresh=True, JAX_PLATFORMS="cpu") == [[[0, 0, 0], "cpu"]]
    assert machine.server.calls() == []


def test_the_first_array_takes_three_quarters_of_its_gpu_until_the_process_ends(machine, run):
    said = run("jnp.zeros(10).block_until_ready(); say(*map(used_mib, range(4)))")
    assert said[0][0] >= (CONTEXT + 6 * GIB) // MIB
    assert said[0][1:] == [CONTEXT // MIB] * 3
    assert arenas(machine) == {0: 6 * GIB}
    assert [machine.server.used_bytes(gpu) for gpu in (0, 3)] == [0, 0]


def test_beside_others_less_is_taken_until_it_fits(machine, run):
    machine.server.change(0, processes={5004242: "5GiB"})
    run("jnp.zeros(10)")
    assert machine.server.calls(call="refused")[0].bytes == 6 * GIB
    assert 2 * GIB < arenas(machine)[0] < 3 * GIB


def test_what_does_not_fit_is_an_error_and_no_crash(machine, run):
    machine.server.change(0, processes={5004242: "7GiB"})
    program = """
try:
    jax.device_put(np.empty(2**30, dtype=np.uint8)).block_until_ready()
except Exception as error:
    say(str(error).split(":")[0])
"""
    # That of the driver itself: JAX's own tries again for ten seconds.
    assert run(program, XLA_PYTHON_CLIENT_ALLOCATOR="platform") == [["RESOURCE_EXHAUSTED"]]
    assert machine.server.calls(call="refused") != []


@pytest.mark.parametrize(
    ("program", "said", "taken"),
    [
        pytest.param(
            "say(train(lambda k, x: x @ k, jnp.ones((8, 2)), jnp.ones((4, 8))))", [8, 2], {0: 6 * GIB}, id="linear"
        ),
        pytest.param(
            "say(train(lambda k, x: jax.lax.conv(x, k, (1, 1), 'SAME'), jnp.ones((8, 3, 3, 3)), "
            "jnp.ones((2, 3, 16, 16))))",
            [8, 3, 3, 3],
            {0: 6 * GIB},
            id="convolution",
        ),
        pytest.param(
            "say([np.asarray(jax.device_put(np.arange(3), device)).tolist() for device in jax.devices()])",
            [[0, 1, 2]] * 4,
            ON_ALL,
            id="copies-arrive",
        ),
        pytest.param(
            "say(jax.pmap(lambda x: jax.lax.psum(x, 'i'), axis_name='i')(jnp.ones((4, 8))).shape)",
            [4, 8],
            ON_ALL,
            id="parallel-map",
        ),
        pytest.param(
            """
from jax.sharding import Mesh, NamedSharding, PartitionSpec
sharding = NamedSharding(Mesh(np.array(jax.devices()), ("rows",)), PartitionSpec("rows"))
x = jax.device_put(np.ones((8, 8), "float32"), sharding)
say(jax.jit(lambda x: (x * 2).sum(axis=1))(x).shape)
""",
            [8],
            ON_ALL,
            id="sharded-array",
        ),
    ],
)
def test_what_scripts_do_works(machine, run, program, said, taken):
    assert run(program) == [[said]]
    assert arenas(machine) == taken
