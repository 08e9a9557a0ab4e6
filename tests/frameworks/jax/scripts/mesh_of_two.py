import jax

mesh = jax.make_mesh((2,), ("data",))
print(mesh.size)
