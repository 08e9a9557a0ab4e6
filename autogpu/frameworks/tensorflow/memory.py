"""TensorFlow counts the memory of its tensors, and has errors of its own when none is left."""

from __future__ import annotations

import re
import sys

from autogpu.frameworks.base import OutOfMemory
from autogpu.reporting.text import numbered, sized

_BYTES = {"float": 4, "double": 8, "half": 2, "bool": 1}


def peak_bytes() -> int:
    """See :meth:`autogpu.frameworks.base.Framework.peak_bytes`. Counted from 2.5 on, and not in sessions."""
    context = getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)
    # Asked before it has started, it would start.
    if context is None or context._context_handle is None or not hasattr(context, "get_memory_info"):
        return 0
    gpus = context.list_logical_devices("GPU")
    return max([context.get_memory_info(gpu.name)["peak"] for gpu in gpus], default=0)


def needed_bytes(*, growth: bool) -> int:
    """See :meth:`autogpu.frameworks.base.Framework.needed_bytes`."""
    return with_growth(peak_bytes()) if growth else peak_bytes()


def with_growth(peak_bytes: int) -> int:
    """The bytes that TensorFlow's allocator needs for such a peak if it grows: half more. It counts that nowhere.

    What it adds is twice the last region, or the next power of two above the tensor, and less where the GPU has no
    more; what is left at the ends of regions is of no use to larger tensors. Source: ``BFCAllocator::Extend``. By its
    rules one of 2,700 random mixes of tensors of 16 MiB to 8 GiB needed more than 1.65 times its peak, which this is
    with the tenth that is added to each. The next power of two, which costs as much, was too little for 126 of them.
    """
    return peak_bytes * 3 // 2


def out_of_memory(error: BaseException) -> OutOfMemory | None:
    """See :meth:`autogpu.frameworks.base.Framework.out_of_memory`."""
    name, text = type(error).__name__, str(error)
    if not type(error).__module__.startswith("tensorflow"):
        return None
    # A copy to a GPU that is full fails in other words.
    is_full = name == "ResourceExhaustedError" or (name == "InternalError" and "Dst tensor is not initialized" in text)
    # Without a device it is a graph that XLA has compiled.
    if not is_full or "by allocator cpu" in text:
        return None
    asked = sized("allocat(?:e|ing) SIZE", text) or _tensor_bytes(text)
    return OutOfMemory(asked, numbered(r"GPU_(\d+)_bfc", text) or numbered(r"GPU:(\d+) in order to run", text))


def _tensor_bytes(text: str) -> int:
    found = re.search(r"shape ?\[([\d,]*)\] and type ([a-z]+)(\d*)", text)
    if not found:
        return 0
    size = int(found.group(3)) // 8 if found.group(3) else _BYTES.get(found.group(2), 0)
    for length in filter(None, found.group(1).split(",")):
        size *= int(length)
    return size
