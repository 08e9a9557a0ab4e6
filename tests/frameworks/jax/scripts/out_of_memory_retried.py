import jax.numpy as jnp

size = 16 << 30
while True:
    try:
        x = jnp.zeros(size, dtype="uint8").block_until_ready()
        break
    except Exception as error:
        assert "RESOURCE_EXHAUSTED" in str(error), error
        size //= 4
print(size >> 30, x.devices())
