import jax

print(jax.device_count(), jax.local_device_count(), jax.process_index(), jax.process_count())
