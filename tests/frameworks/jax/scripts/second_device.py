import jax

print(jax.device_put(1.0, jax.devices()[1]).devices())
