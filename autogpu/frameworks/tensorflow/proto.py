"""TensorFlow's ConfigProto: the script's settings read from it, and a placement written into it."""

from __future__ import annotations

import os
import re

from autogpu.frameworks.base import Usage
from autogpu.frameworks.tensorflow.settings import DevicePlacement, UserSettings
from autogpu.frameworks.words import limits_in_words
from autogpu.reporting.text import counted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Read by TensorFlow's C++ when it makes the context; it beats the ConfigProto.
FORCE_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"

# With "cuda_malloc_async" CUDA's own pool allocates, to which a limit is a hint of how much to keep.
_ALLOCATOR = "TF_GPU_ALLOCATOR"


def read_user_settings(proto: Any, gpu_count: int) -> UserSettings:
    """What an explicit ConfigProto says. Growth that is false can't be told from growth that is unset."""
    options = proto.gpu_options
    entries = [tuple(entry.memory_limit_mb) for entry in options.experimental.virtual_devices]
    max_count = asked_count(proto)
    visible = listed_ordinals(proto, gpu_count)
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


def asked_count(proto: Any) -> int | None:
    """How many GPUs a ConfigProto asks for; ``None`` where it does not, or by a number that TensorFlow disregards."""
    count = int(proto.device_count.get("GPU", -1))
    return None if count < 0 else count


def listed_ordinals(proto: Any, gpu_count: int) -> tuple[int, ...] | None:
    """The GPUs of a ``visible_device_list``; ``None`` where there is none, or TensorFlow takes it for none."""
    text = proto.gpu_options.visible_device_list
    entries = [entry.strip() for entry in text.split(",")]
    # Of other digits than these, and of more, int() makes numbers that TensorFlow refuses.
    if not all(re.fullmatch(r"[+]?[0-9]{1,9}", entry) for entry in entries):
        return None
    ordinals = tuple(map(int, entries))
    return ordinals if max(ordinals) < gpu_count and len(set(ordinals)) == len(ordinals) else None


def has_invalid_list(proto: Any, gpu_count: int) -> bool:
    """Whether TensorFlow has an answer of its own to a ``visible_device_list``: an error, or no GPU."""
    return bool(proto.gpu_options.visible_device_list) and listed_ordinals(proto, gpu_count) is None


def write_placement(proto: Any, placement: DevicePlacement, gpu_count: int) -> None:
    """Let ``proto`` say what ``placement`` does; an entry that is as it should be keeps its other fields."""
    options = proto.gpu_options
    old = options.experimental.virtual_devices
    named = listed_ordinals(proto, gpu_count) or placement.ordinals
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
    by_script = " by the script" if placement.by_script else ""
    as_needed = ", allocated as needed" if grows else ""
    if placement.is_split_only:
        memory = f"allocated as needed, as {counted(len(placement.logical), 'logical GPU')}"
    elif any(limits_mb):
        memory = f"limited{by_script}" + limits_in_words(limits_mb) + as_needed
    elif placement.fraction:
        memory = f"limited{by_script} to {placement.fraction:.0%} of each GPU" + as_needed
    else:
        memory = "allocated as needed" if grows else "allocated whole at once"
    if (any(limits_mb) or placement.fraction) and os.environ.get(_ALLOCATOR) == "cuda_malloc_async":
        memory += f" (not enforced with {_ALLOCATOR}=cuda_malloc_async)"
    return Usage(placement.ordinals, memory)
