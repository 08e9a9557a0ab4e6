import sys

import jax.numpy as jnp

jnp.ones(3)
sys.exit(3)
