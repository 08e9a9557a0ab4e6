"""Libraries that use all GPUs by default: the functions in which they count GPUs, and the number that they get.

A library that sizes its batch, or the number of its processes, by the number of GPUs gets ``select.count`` of them. If
a later version counts in a function that is not listed here, it gets the true number.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, Callable

from autogpu.frameworks.base import hooked, is_hooked

# Trainer calls torch.cuda.device_count in this function, and makes a DataParallel in the second module.
_TRAINER = ("transformers.training_args", "_setup_devices")
_TRAINER_MODULE = "transformers.trainer"

# Lightning has had three names. It calls the function only for devices="auto", because any other value is the user's
# choice. Up to 2.3 Lightning caches the number of GPUs, so autogpu has to hook the function itself.
_LIGHTNING_PACKAGES = ("lightning", "lightning_fabric", "pytorch_lightning")
_LIGHTNING_MODULES = (
    *("lightning.fabric.accelerators.cuda", "lightning.pytorch.accelerators.cuda"),
    *("lightning_fabric.accelerators.cuda", "pytorch_lightning.accelerators.cuda"),
)
_LIGHTNING_CLASS = "CUDAAccelerator"
_LIGHTNING_FUNCTION = "auto_device_count"

# The function in which DataParallel and data_parallel without device_ids count GPUs, and its depth below their caller.
_DATA_PARALLEL = ("torch._utils", "<lambda>")
_CALLS_OF_DATA_PARALLEL = 4

# Code that spreads a model or a batch over all GPUs, and its name for messages. accelerate's function is called for
# transformers and diffusers as well.
_SPREADING = {_DATA_PARALLEL: "DataParallel", ("accelerate.utils.modeling", "get_max_memory"): 'device_map="auto"'}


def place_of(frame: FrameType | None) -> tuple[str, str]:
    """Return the names of the module and of the function that run in ``frame``."""
    return ("", "") if frame is None else (str(frame.f_globals.get("__name__")), frame.f_code.co_name)


def is_trainer(caller: FrameType | None) -> bool:
    """True if ``caller`` asks for the number of GPUs on behalf of Trainer."""
    if place_of(caller) != _DATA_PARALLEL:
        return place_of(caller) == _TRAINER
    above = caller
    for _ in range(_CALLS_OF_DATA_PARALLEL):
        above = above.f_back if above is not None else None
    return place_of(above)[0] == _TRAINER_MODULE


def spreading(caller: FrameType | None) -> str:
    """Return a name for the code that spreads over all GPUs, if ``caller`` is part of such code; else ``""``."""
    return _SPREADING.get(place_of(caller), "")


def is_lightning(caller: FrameType | None) -> bool:
    return place_of(caller)[0].partition(".")[0] in _LIGHTNING_PACKAGES


def hook_lightning(hook: Callable[[Any], int]) -> None:
    """Hook Lightning's functions that count the GPUs for ``devices="auto"``, in the modules that are imported."""
    for module in filter(None, map(sys.modules.get, _LIGHTNING_MODULES)):
        accelerator = getattr(module, _LIGHTNING_CLASS, None)
        original = getattr(accelerator, "__dict__", {}).get(_LIGHTNING_FUNCTION)
        if isinstance(original, staticmethod) and not is_hooked(original.__func__):
            setattr(accelerator, _LIGHTNING_FUNCTION, staticmethod(hooked(original.__func__, hook)))


def count_for_library(
    visible: int, wanted: int | str, *, claimed: tuple[int, ...] | None = None, is_set: bool = False
) -> int:
    """Return the number of GPUs that a library gets if it would use all of them. Pure.

    Args:
        visible: How many GPUs the process sees.
        wanted: ``select.count``.
        claimed: The GPU numbers of the claim; ``None`` if nothing is claimed yet.
        is_set: True if somebody has set which GPUs the process uses: by a list, or by a number on the command line.
    """
    if is_set or wanted == "all" or visible < 2:
        return visible
    if claimed is None:
        return max(1, min(visible, int(wanted)))
    # The library uses GPUs from number 0 on. A claim of other numbers was made for other code, which chose them.
    return len(claimed) if claimed and claimed == tuple(range(len(claimed))) else visible
