"""TensorFlow, 1.15 and later: the entry points through which it takes GPUs, and what is filled in there.

No tf.config setter is ever called: a setter makes the script's own, ordinary calls raise later. Every way to a GPU ends
in a ConfigProto, and there the assignment is filled in where the script set nothing.
"""

from __future__ import annotations

import re
import sys

from autogpu.frameworks.base import OutOfMemory
from autogpu.frameworks.tensorflow.hooks import find_hooks as find_hooks
from autogpu.frameworks.tensorflow.hooks import install_hooks as install_hooks
from autogpu.frameworks.tensorflow.settings import FORCE_GROWTH
from autogpu.reporting.text import numbered, sized

NAME = "TensorFlow"
DEFAULT_SHARE = 0.94  # 1.15 to 2.21 take 93 to 98 % where memory growth is off
TAKES_FIRST_GPUS = False  # a ConfigProto names any
GROWTH_VARIABLES = {FORCE_GROWTH: "true"}
HAS_LOGICAL_GPUS = True
WANTS_ORDER = False  # its request says more than is known before CUDA

_BYTES = {"float": 4, "double": 8, "half": 2, "bool": 1}


def peak_bytes() -> int:
    """Counted from 2.5 on, and not in sessions."""
    context = getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)
    # Asked before it has started, it would start.
    if context is None or context._context_handle is None or not hasattr(context, "get_memory_info"):
        return 0
    gpus = context.list_logical_devices("GPU")
    return max([context.get_memory_info(gpu.name)["peak"] for gpu in gpus], default=0)


def needed_bytes(*, growth: bool) -> int:
    """With ``growth``, half more than the peak: what its allocator needs then, which it counts nowhere.

    What it adds is twice the last region, or the next power of two above the tensor, and less where the GPU has no
    more; what is left at the ends of regions is of no use to larger tensors. Source: ``BFCAllocator::Extend``. By its
    rules one of 2,700 random mixes of tensors of 16 MiB to 8 GiB needed more than 1.65 times its peak, which this is
    with the tenth that is added to each. The next power of two, which costs as much, was too little for 126 of them.
    """
    return peak_bytes() * 3 // 2 if growth else peak_bytes()


def out_of_memory(error: BaseException) -> OutOfMemory | None:
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
