"""TensorFlow's ConfigProto: the script's settings read from it, and a placement written into it."""

from __future__ import annotations

import os

from autogpu.frameworks.base import Usage
from autogpu.frameworks.tensorflow.settings import DevicePlacement, UserSettings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Sequence

# Read by TensorFlow's C++ when it makes the context; it beats the ConfigProto.
FORCE_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"

# With "cuda_malloc_async" CUDA's own pool allocates, to which a limit is a hint of how much to keep.
_ALLOCATOR = "TF_GPU_ALLOCATOR"


def read_user_settings(proto: Any, gpu_count: int) -> UserSettings:
    """What an explicit ConfigProto says. Growth that is false can't be told from growth that is unset."""
    options = proto.gpu_options
    entries = [tuple(entry.memory_limit_mb) for entry in options.experimental.virtual_devices]
    max_count = int(proto.device_count["GPU"]) if "GPU" in proto.device_count else None
    visible = _listed_ordinals(options.visible_device_list) if options.visible_device_list else None
    if visible is None and len(entries) > 1:
        visible = tuple(range(len(entries)))  # an entry for each of several GPUs names them
    if visible is None and entries:
        max_count = 1  # TensorFlow wants as many GPUs as entries
    return UserSettings(
        visible=visible,
        max_count=max_count,
        growths=dict.fromkeys(range(gpu_count), True) if options.allow_growth else {},
        limits={ordinal: limits for ordinal, limits in zip(visible or (0,), entries) if limits},
        fraction=options.per_process_gpu_memory_fraction,
    )


def write_placement(proto: Any, placement: DevicePlacement) -> None:
    """Let ``proto`` say what ``placement`` does; an entry that is as it should be keeps its other fields."""
    options = proto.gpu_options
    old = options.experimental.virtual_devices
    named = _listed_ordinals(options.visible_device_list) if options.visible_device_list else placement.ordinals
    entries = {ordinal: type(entry).FromString(entry.SerializeToString()) for ordinal, entry in zip(named, old)}
    del old[:]
    options.visible_device_list = ",".join(map(str, placement.ordinals))
    if not placement.ordinals:
        proto.device_count["GPU"] = 0
        return
    options.per_process_gpu_memory_fraction = placement.fraction
    if placement.growth is not None:
        options.allow_growth = placement.growth
    for ordinal in placement.ordinals if placement.limits else ():
        entry, limits = old.add(), placement.limits.get(ordinal, ())
        if ordinal in entries and tuple(entries[ordinal].memory_limit_mb) == limits:
            entry.CopyFrom(entries[ordinal])
        else:
            entry.memory_limit_mb.extend(limits)
    if "GPU" in proto.device_count:
        proto.device_count["GPU"] = len(placement.logical)


def usage_of(placement: DevicePlacement, allow_growth: bool) -> Usage:
    """What a finished ConfigProto asks the driver for: the script's settings and the policy's, merged."""
    limits_mb = [placement.limits.get(ordinal, ()) for ordinal in placement.ordinals]
    forced = os.environ.get(FORCE_GROWTH)
    grows = allow_growth if forced not in ("true", "false") else forced == "true"
    as_needed = ", allocated as needed" if grows else ""
    if any(limits_mb):
        memory = _limits_in_words(limits_mb) + as_needed
    elif placement.fraction:
        memory = f"limited to {placement.fraction:.0%} of each GPU" + as_needed
    else:
        memory = "allocated as needed" if grows else "allocated whole at once"
    if (any(limits_mb) or placement.fraction) and os.environ.get(_ALLOCATOR) == "cuda_malloc_async":
        memory += f" (not enforced with {_ALLOCATOR}=cuda_malloc_async)"
    return Usage(placement.ordinals, memory)


def _limits_in_words(limits_mb: Sequence[tuple[float, ...]]) -> str:
    """Given those of the logical GPUs of each GPU."""
    each = [" + ".join(f"{limit:.0f}" for limit in limits) + " MiB" if limits else "none" for limits in limits_mb]
    if len(set(each)) > 1:
        return "limited, in this order, to " + ", ".join(each)
    return f"limited to {each[0]}" + (" on each" if len(each) > 1 else "")


def _listed_ordinals(visible_device_list: str) -> tuple[int, ...]:
    return tuple(int(ordinal) for ordinal in visible_device_list.split(","))
