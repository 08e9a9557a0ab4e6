import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

mesh = Mesh(np.array(jax.local_devices()), ("i",))
double = jax.shard_map(lambda block: block * 2, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
print(double(jnp.ones((8, 2))).shape, mesh.size)
