import jax
import jax.numpy as jnp

gpu = jax.devices("gpu")[0]
print(gpu, jax.device_put(jnp.arange(4), gpu).devices())
