import jax
import jax.numpy as jnp

gradient = jax.grad(jax.checkpoint(lambda x: jnp.sum(jnp.sin(jnp.sin(x)))))(jnp.ones(4))
print(gradient.devices())
