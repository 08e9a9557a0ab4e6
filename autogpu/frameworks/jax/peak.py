"""What JAX's arrays had at most."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def peak_bytes() -> int:
    """See :meth:`autogpu.frameworks.base.Framework.peak_bytes`."""
    backends: Any = getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", {})
    devices = [device for client in backends.values() for device in client.local_devices()]
    # A CPU counts nothing, nor does every allocator.
    return max([(device.memory_stats() or {}).get("peak_bytes_in_use", 0) for device in devices], default=0)
