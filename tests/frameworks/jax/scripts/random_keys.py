import jax

key = jax.random.key(0)
print(jax.random.split(key, 3).shape, jax.random.uniform(key, (4,)).devices())
