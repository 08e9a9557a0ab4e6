import os

os.environ["JAX_PLATFORMS"] = "cpu"
import jax

print(jax.devices(), jax.numpy.ones(3).devices())
