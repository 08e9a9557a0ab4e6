"""The simulated GPU server under unmodified JAX. Numbers are garbage there: nothing looks at a loss."""

import pytest

from tests.simulator.conftest import arenas, each_release
from tests.support import framework_environments
from tests.support.framework_machines import GIB

pytestmark = [pytest.mark.framework, pytest.mark.timeout(1200)]

FRAMEWORK = "jax"

PRELUDE = """
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
"""
# Each line says what it is about.
PROGRAM = """
def train(apply, k, x):
    step = jax.jit(jax.grad(lambda k, x: jnp.mean(apply(k, x) ** 2)))
    for _ in range(3):
        k = k - 0.1 * step(k, x)
    return k.shape

say("linear", train(lambda k, x: x @ k, jnp.ones((8, 2)), jnp.ones((4, 8))))
image = jnp.ones((2, 3, 16, 16))
say("convolution", train(lambda k, x: jax.lax.conv(x, k, (1, 1), "SAME"), jnp.ones((8, 3, 3, 3)), image))
say("copies", [np.asarray(jax.device_put(np.arange(3), device)).tolist() for device in jax.devices()])
say("parallel map", jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")(jnp.ones((4, 8))).shape)
sharding = NamedSharding(Mesh(np.array(jax.devices()), ("rows",)), PartitionSpec("rows"))
x = jax.device_put(np.ones((8, 8), "float32"), sharding)
say("sharded array", jax.jit(lambda x: (x * 2).sum(axis=1))(x).shape)
"""


@pytest.fixture(scope="module", params=each_release(framework_environments.JAXES))
def python(request):
    return framework_environments.jax(request.param)


def test_what_scripts_do_works_and_takes_three_quarters_of_each_gpu(machine, run):
    assert run(PROGRAM) == [
        ["linear", [8, 2]],
        ["convolution", [8, 3, 3, 3]],
        ["copies", [[0, 1, 2]] * 4],
        ["parallel map", [4, 8]],
        ["sharded array", [8]],
    ]
    assert arenas(machine) == dict.fromkeys(range(4), 6 * GIB)
