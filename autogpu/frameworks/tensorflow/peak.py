"""What TensorFlow's tensors had at most."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def peak_bytes() -> int:
    """See :meth:`autogpu.frameworks.base.Framework.peak_bytes`. Counted from 2.5 on, and not in sessions."""
    module: Any = sys.modules.get("tensorflow.python.eager.context")
    context: Any = getattr(module, "_context", None)
    # Asked before it has started, it would start.
    if context is None or context._context_handle is None or not hasattr(context, "get_memory_info"):
        return 0
    gpus = context.list_logical_devices("GPU")
    return max([context.get_memory_info(gpu.name)["peak"] for gpu in gpus], default=0)
