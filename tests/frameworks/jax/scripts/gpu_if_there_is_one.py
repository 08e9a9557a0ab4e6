import jax

try:
    device = jax.devices("gpu")[0]
except RuntimeError:
    device = jax.devices("cpu")[0]
print(jax.device_put([1.0, 2.0], device)[0].devices())
