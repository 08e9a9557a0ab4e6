"""Answers to calls of ``torch.cuda`` by an installed module that is being imported, without starting CUDA.

Keras later calls ``torch.Generator("cuda")``, which starts CUDA in C++ and calls no Python code that could be hooked.
So the function of Keras that makes the generator is hooked as soon as its module is imported.
"""

from __future__ import annotations

import re
import sys
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType, ModuleType
from typing import Any, Callable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.devices.model import CudaProperties

_INSTALLED = re.compile("/(site|dist)-packages/")
_TORCH = re.compile("/(site|dist)-packages/torch/")

_KERAS_MODULE = "keras.src.backend.torch.random"
_KERAS_FUNCTION = "torch_seed_generator"


def importing_module() -> str:
    """Return the name of the installed module that is being imported; ``""`` if there is none.

    If several imports are nested, the innermost decides. PyTorch's own modules do not count. If the innermost module
    belongs to the script, or runs as a program (``python -m``), the result is ``""``.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name == "<module>" and not _TORCH.search(code.co_filename):
            name = str(frame.f_globals.get("__name__"))
            is_program = name in ("__main__", "__mp_main__")
            return name if _INSTALLED.search(code.co_filename) and not is_program else ""
        frame = frame.f_back
    return ""


def ordinal_of(device: Any) -> int | None:
    """Return the GPU number of an argument of ``torch.cuda``; ``None`` if it is invalid, which PyTorch will report."""
    torch: Any = sys.modules["torch"]
    if isinstance(device, torch.cuda.device):
        device = device.idx
    if isinstance(device, int):
        return device if device >= 0 else None
    if device is None:
        return 0
    if isinstance(device, str) and device.partition(":")[0] == "cuda":
        device = torch.device(device)
    is_gpu = isinstance(device, torch.device) and device.type == "cuda"
    return (device.index or 0) if is_gpu else None


class KerasWatch:
    """An import finder that hooks Keras' random module right after its import."""

    def __init__(self, install: Callable[[ModuleType, str], None]) -> None:
        self._install = install
        sys.meta_path.insert(0, self)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname != _KERAS_MODULE:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        loader: Any = getattr(spec, "loader", None)
        if hasattr(loader, "exec_module"):
            # This replaces the method only in this loader, which loads no other module.
            loader.exec_module = partial(self._exec_module, loader.exec_module)
        return spec

    def _exec_module(self, original: Callable[[ModuleType], None], module: ModuleType) -> None:
        original(module)
        self._install(module, _KERAS_FUNCTION)


class DeviceProperties:
    """Stand-in for the result of ``torch.cuda.get_device_properties`` before CUDA has started in this process.

    CUDA reported these attributes to another process. Access to any other attribute starts CUDA in this process.
    """

    def __init__(self, found: CudaProperties, ask: Callable[[], Any]) -> None:
        self.name = found.name
        self.major = found.major
        self.minor = found.minor
        self.total_memory = found.memory_total_bytes
        self.multi_processor_count = found.multiprocessors
        self._ask = ask

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ask(), name)
