import os

os.environ["JAX_PLATFORMS"] = "cuda,cpu"
import jax

print(jax.default_backend(), jax.numpy.ones(3).devices())
