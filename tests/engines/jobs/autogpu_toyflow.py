"""What autogpu needs for ``toyflow``: it treats its jobs as those of TensorFlow."""

from __future__ import annotations

import sys

from autogpu.frameworks.base import DeviceRequest, Hooks, OutOfMemory, Usage

NAME, DEFAULT_SHARE, WANTS_ORDER, TAKES_FIRST_GPUS = "Toyflow", 0.94, False, False
HAS_LOGICAL_GPUS = False


def find_hooks() -> Hooks:
    return Hooks("1.0", ("toyflow.take",))


def install_hooks(allocator, hooks) -> None:
    toyflow = sys.modules["toyflow"]
    original = toyflow.take

    def take(size, **more):
        ordinals, limits = None, {}
        with allocator.guard():
            allocator.prepare()
            assigned = allocator.assign(DeviceRequest(toyflow.gpu_count()))
            ordinals, limits = assigned.ordinals, assigned.caps
            allocator.on_usage(Usage(ordinals or (), "allocated as needed"))
        return original(size, ordinals, limits, **more)

    toyflow.take = take


def peak_bytes() -> int:
    return 0


def needed_bytes(*, growth: bool) -> int:
    return 0


def out_of_memory(error) -> OutOfMemory | None:
    return OutOfMemory(1 << 30) if isinstance(error, sys.modules["toyflow"].OutOfMemoryError) else None
