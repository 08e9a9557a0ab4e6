"""JAX counts the memory of its arrays, and has an error of its own when none is left."""

from __future__ import annotations

import sys

from autogpu.frameworks.base import OutOfMemory
from autogpu.reporting.text import numbered, sized

_CLASSES = ("XlaRuntimeError", "JaxRuntimeError")


def peak_bytes() -> int:
    """See :meth:`autogpu.frameworks.base.Framework.peak_bytes`."""
    return _counted("peak_bytes_in_use")


def needed_bytes(*, growth: bool) -> int:
    """See :meth:`autogpu.frameworks.base.Framework.needed_bytes`."""
    # Without growth the pool is all that there is.
    return (growth and _counted("peak_pool_bytes")) or peak_bytes()


def _counted(name: str) -> int:
    backends = getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", {})
    devices = [device for client in backends.values() for device in client.local_devices()]
    # A CPU counts nothing, nor does every allocator.
    return max([(device.memory_stats() or {}).get(name, 0) for device in devices], default=0)


def out_of_memory(error: BaseException) -> OutOfMemory | None:
    """See :meth:`autogpu.frameworks.base.Framework.out_of_memory`."""
    text = str(error)
    if type(error).__name__ not in _CLASSES or not text.startswith("RESOURCE_EXHAUSTED"):
        return None
    return OutOfMemory(sized("allocat(?:e|ing) SIZE", text), numbered(r"GPU_(\d+)_bfc", text))
