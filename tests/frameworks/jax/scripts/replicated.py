import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

mesh = Mesh(np.array(jax.devices()), ("data",))
x = jax.device_put(jnp.ones((8, 4)), NamedSharding(mesh, PartitionSpec("data")))
y = jax.jit(lambda x: x + 1)(x)
print(mesh.shape["data"], len(y.devices()), y.shape)
