import jax
import numpy as np

x = jax.device_put(np.ones((4, 4)), jax.devices()[0])
print(x.devices())
