import jax

print(jax.default_backend(), len(jax.devices()) > 0, jax.devices()[0].platform, jax.devices()[0].device_kind)
