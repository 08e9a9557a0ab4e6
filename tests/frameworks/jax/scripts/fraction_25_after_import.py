import os

import jax

os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = ".25"
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
x = jax.numpy.zeros(4 << 30, dtype="uint8")
try:
    jax.numpy.zeros(4 << 30, dtype="uint8").block_until_ready()
except Exception as error:
    print(type(error).__name__, "RESOURCE_EXHAUSTED" in str(error))
print(x.devices())
