import jax
import jax.numpy as jnp
import numpy as np

np.savez("weights.npz", w=np.asarray(jnp.ones(4)))
print(jax.device_put(np.load("weights.npz")["w"]).devices())
