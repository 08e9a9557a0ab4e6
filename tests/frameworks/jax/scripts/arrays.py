import jax.numpy as jnp

x = jnp.ones((64, 64))
y = x @ x
print(y.shape, y.devices())
