import jax
import jax.numpy as jnp
import numpy as np

seen = []
x = jnp.ones(3)
y = jax.pure_callback(lambda x: seen.append(x.shape) or np.ones(3, np.float32), jax.ShapeDtypeStruct((3,), x.dtype), x)
y.block_until_ready()
print(seen, y.devices())
