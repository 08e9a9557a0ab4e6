import jax
import jax.numpy as jnp

with jax.default_device(jax.devices()[0]):
    print(jnp.ones(3).devices())
