"""JAX: the start of its backends, and the options of the client that has the GPUs.

JAX makes a context on each GPU that its client sees, and by default takes 75 % of each at the first allocation. Every
way to a GPU ends in that client's options, and there the assignment is filled in where the script set nothing.
"""

from __future__ import annotations

from autogpu.frameworks.jax.hooks import find_hooks as find_hooks
from autogpu.frameworks.jax.hooks import install_hooks as install_hooks
from autogpu.frameworks.jax.memory import needed_bytes as needed_bytes
from autogpu.frameworks.jax.memory import out_of_memory as out_of_memory
from autogpu.frameworks.jax.memory import peak_bytes as peak_bytes

NAME = "JAX"
DEFAULT_SHARE = 0.75  # XLA_CLIENT_MEM_FRACTION where it is not set
GROWTH_VARIABLES: dict[str, str] = {}
TAKES_FIRST_GPUS = False  # the client's options name any
HAS_LOGICAL_GPUS = False
WANTS_ORDER = True  # its devices are named by the ordinals, and checkpoints hold the names
