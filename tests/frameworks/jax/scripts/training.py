import jax
import jax.numpy as jnp


def loss(parameters, x, y):
    return jnp.mean((x @ parameters["w"] + parameters["b"] - y) ** 2)


@jax.jit
def step(parameters, x, y):
    gradients = jax.grad(loss)(parameters, x, y)
    return jax.tree_util.tree_map(lambda p, g: p - 0.1 * g, parameters, gradients)


key = jax.random.PRNGKey(0)
parameters = {"w": jax.random.normal(key, (8, 1)), "b": jnp.zeros(1)}
for _ in range(3):
    parameters = step(parameters, jnp.ones((16, 8)), jnp.ones((16, 1)))
print(parameters["w"].shape, parameters["w"].devices())
