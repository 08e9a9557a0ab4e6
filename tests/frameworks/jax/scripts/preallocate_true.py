import os

os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "true"
import jax

print(jax.numpy.ones(3).devices())
