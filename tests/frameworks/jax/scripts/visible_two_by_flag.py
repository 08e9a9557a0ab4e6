import jax

jax.config.update("jax_cuda_visible_devices", "1,2")
print(jax.numpy.ones(3).devices(), jax.device_count())
