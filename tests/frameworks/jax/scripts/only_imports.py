import jax
import jax.numpy as jnp

print(jax.__name__, jnp.float32.__name__)
