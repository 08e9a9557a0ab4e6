"""PyTorch: the functions of its C++ that initialise CUDA, and what is set there.

``cuda`` and ``cuda:0`` are a thread's current device, and C++ never tells Python which GPU it uses. So the GPUs are
claimed before CUDA counts them, and CUDA finds the claimed one under the number that the program is about to use.
"""

from __future__ import annotations

import re
import sys

from autogpu.frameworks.base import OutOfMemory
from autogpu.frameworks.torch.hooks import find_hooks as find_hooks
from autogpu.frameworks.torch.hooks import install_hooks as install_hooks
from autogpu.reporting.text import numbered, sized

NAME = "PyTorch"
DEFAULT_SHARE = 1.0  # its allocator grows until the driver refuses
GROWTH_VARIABLES: dict[str, str] = {}
TAKES_FIRST_GPUS = True
HAS_LOGICAL_GPUS = False
WANTS_ORDER = True

# The second is the driver's, for a context or a library of CUDA.
_TEXTS = ("CUDA out of memory", "CUDA error: out of memory")

# How it begins where ``DataParallel`` raises it anew; a worker process of a ``DataLoader`` is no replica.
_THREAD = re.compile(r"Caught \w+ in replica ")


def peak_bytes() -> int:
    """With what it keeps for later tensors."""
    return max((each.get("reserved_bytes.all.peak", 0) for each in _counted()), default=0)


def needed_bytes(*, growth: bool) -> int:
    """Nothing is told by a run that caught an error."""
    return 0 if any(each.get("num_ooms") for each in _counted()) else peak_bytes()


def _counted() -> list[dict[str, int]]:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return []
    return [cuda.memory_stats(number) for number in range(cuda.device_count())]


def out_of_memory(error: BaseException) -> OutOfMemory | None:
    text = str(error)
    if _THREAD.match(text):
        text = text[max(map(text.find, _TEXTS)) :]
    # A RuntimeError up to 1.12, and a class of its own under it since.
    if not isinstance(error, RuntimeError) or not text.startswith(_TEXTS):
        return None
    asked, allowed = sized("Tried to allocate SIZE", text), sized("SIZE allowed", text)
    return OutOfMemory(asked, numbered(r"GPU (\d+)[ ;]", text), allowed)
