import jax
import jax.numpy as jnp


@jax.jit
def step(x):
    return jnp.tanh(x) * 2


print(step(jnp.ones((16, 16))).devices())
