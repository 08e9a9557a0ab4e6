import os

import jax

os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = ".25"
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
x = jax.numpy.zeros(4 << 30, dtype="uint8")
print(x.devices(), jax.local_devices()[0].memory_stats()["bytes_limit"] >> 20)
