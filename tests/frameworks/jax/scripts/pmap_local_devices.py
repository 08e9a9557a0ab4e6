import jax
import jax.numpy as jnp

n = jax.local_device_count()
y = jax.pmap(lambda x: x * 2)(jnp.ones((n, 4)))
print(y.shape, len(y.devices()))
