"""What PyTorch's allocator had at most."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def peak_bytes() -> int:
    """See :meth:`autogpu.frameworks.base.Framework.peak_bytes`. With what it keeps for later tensors."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return 0
    return max((cuda.max_memory_reserved(number) for number in range(cuda.device_count())), default=0)
