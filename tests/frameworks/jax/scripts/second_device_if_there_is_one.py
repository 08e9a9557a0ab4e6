import jax

device = jax.devices()[1 if jax.device_count() > 1 else 0]
print(jax.device_put(1.0, device).devices())
