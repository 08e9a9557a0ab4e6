import jax
from jax.extend.backend import clear_backends

print(jax.numpy.ones(3).devices())
clear_backends()
print(jax.numpy.ones(3).devices())
