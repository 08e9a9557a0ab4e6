import os

os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = ".25"
import jax

print(jax.numpy.ones(3).devices())
