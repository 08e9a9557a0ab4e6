import jax
import jax.numpy as jnp

x = jnp.zeros(1 << 20)
x.block_until_ready()
stats = jax.local_devices()[0].memory_stats()
print(stats is None or stats["bytes_in_use"] >= x.nbytes, len(jax.live_arrays()))
