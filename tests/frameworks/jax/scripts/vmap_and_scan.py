import jax
import jax.numpy as jnp

total, each = jax.lax.scan(lambda carry, x: (carry + x, carry), jnp.zeros(3), jnp.ones((5, 3)))
print(jax.vmap(jnp.sin)(each).shape, total.devices())
