import jax

jax.config.update("jax_enable_x64", True)
print(jax.numpy.ones(3).dtype, jax.numpy.ones(3).devices())
