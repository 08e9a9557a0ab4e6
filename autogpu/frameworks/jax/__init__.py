"""JAX: the start of its backends, and the options of the client that has the GPUs.

JAX makes a context on each GPU that its client sees, and by default takes 75 % of each at the first allocation. Every
way to a GPU ends in that client's options, and there the assignment is filled in where the script set nothing.
"""

from __future__ import annotations

import sys

from autogpu.frameworks.base import OutOfMemory
from autogpu.frameworks.jax.hooks import find_hooks as find_hooks
from autogpu.frameworks.jax.hooks import install_hooks as install_hooks
from autogpu.reporting.text import numbered, sized

NAME = "JAX"
DEFAULT_SHARE = 0.75  # XLA_CLIENT_MEM_FRACTION where it is not set
GROWTH_VARIABLES: dict[str, str] = {}
TAKES_FIRST_GPUS = False  # the client's options name any
HAS_LOGICAL_GPUS = False
WANTS_ORDER = True  # its devices are named by the ordinals, and checkpoints hold the names

_CLASSES = ("XlaRuntimeError", "JaxRuntimeError")


def peak_bytes() -> int:
    return _counted("peak_bytes_in_use")


def needed_bytes(*, growth: bool) -> int:
    # Without growth the pool is all that there is.
    return (growth and _counted("peak_pool_bytes")) or peak_bytes()


def _counted(name: str) -> int:
    backends = getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", {})
    devices = [device for client in backends.values() for device in client.local_devices()]
    # A CPU counts nothing, nor does every allocator.
    return max([(device.memory_stats() or {}).get(name, 0) for device in devices], default=0)


def out_of_memory(error: BaseException) -> OutOfMemory | None:
    text = str(error)
    if type(error).__name__ not in _CLASSES or not text.startswith("RESOURCE_EXHAUSTED"):
        return None
    return OutOfMemory(sized("allocat(?:e|ing) SIZE", text), numbered(r"GPU_(\d+)_bfc", text))
