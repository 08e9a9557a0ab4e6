import jax

cpu = jax.devices("cpu")[0]
print(cpu, jax.device_put(1.0, cpu).devices())
