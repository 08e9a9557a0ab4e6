import jax
import jax.numpy as jnp

jax.config.update("jax_default_device", jax.devices("cpu")[0])
print(jnp.ones(3).devices())
