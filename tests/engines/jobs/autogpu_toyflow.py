"""The class by which autogpu supports ``toyflow``. autogpu treats its jobs like those of TensorFlow."""

from __future__ import annotations

import sys
from typing import Any

from autogpu.frameworks.base import HookedFramework
from autogpu.frameworks.model import DeviceRequest, Hooks, OutOfMemory, Usage


class Toyflow(HookedFramework):
    NAME = "Toyflow"
    default_share = 0.94

    @staticmethod
    def find_hooks() -> Hooks:
        return Hooks("1.0", ("toyflow.take",))

    def install_hooks(self, hooks: Hooks) -> None:
        import toyflow

        original = toyflow.take

        def take(size, **more):
            ordinals: Any = None
            limits: Any = {}
            with self.guard():
                self.prepare()
                assigned = self.assign(DeviceRequest(toyflow.gpu_count()))
                ordinals = assigned.ordinals
                limits = {ordinal: cap.bytes for ordinal, cap in assigned.caps.items()}
                self.on_usage(Usage(ordinals or (), "allocated as needed"))
            return original(size, ordinals, limits, **more)

        toyflow.take = take

    @staticmethod
    def peak_bytes() -> int:
        return 0

    @staticmethod
    def out_of_memory(error: BaseException) -> OutOfMemory | None:
        return OutOfMemory(1 << 30) if isinstance(error, sys.modules["toyflow"].OutOfMemoryError) else None
