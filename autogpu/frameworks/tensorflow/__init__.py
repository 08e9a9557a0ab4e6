"""TensorFlow 1.15 and later: hooks in the entry points through which TensorFlow gets its GPUs.

autogpu never calls a setter of tf.config, because ordinary calls of the script would then raise later. Every way to a
GPU ends in a ConfigProto. autogpu fills in the assignment there, except for settings that the script has set.
"""

from __future__ import annotations

import re
import sys
from typing import Any, Callable, Mapping

from autogpu.frameworks.base import HookedFramework, hooked, is_hooked
from autogpu.frameworks.model import Hooks, OutOfMemory
from autogpu.frameworks.tensorflow import entry_points
from autogpu.frameworks.tensorflow.placement import PlacementResolver, module_of
from autogpu.frameworks.tensorflow.settings import FORCE_GROWTH
from autogpu.frozen import replace

_CONTEXT = "eager.context"
# Functions with a device name as their argument. Scripts call them often, so they are hooked only as long as a name can
# have an effect: until TensorFlow has every GPU that a name can mean, or until autogpu has reported a late name.
_NAMING: Mapping[str, Callable[..., Any]] = {
    "eager.context.device": entry_points.device,
    "framework.ops.Graph.device": entry_points.graph_device,
}

# The name of the class of TensorFlow's out-of-memory error.
_FULL = "ResourceExhaustedError"

_BYTES = {"float": 4, "double": 8, "half": 2, "bool": 1}


class TensorFlow(HookedFramework):
    """TensorFlow in this process. The hooks are in :mod:`~autogpu.frameworks.tensorflow.entry_points`."""

    NAME = "TensorFlow"
    default_share = 0.94  # 1.15 to 2.21 take 93 to 98 % without memory growth
    HAS_LOGICAL_GPUS = True

    @staticmethod
    def find_hooks() -> Hooks:
        version = str(getattr(sys.modules.get("tensorflow"), "__version__", "?"))
        if _is_built_with_rocm():
            return Hooks(version, obstacle="this TensorFlow is built for ROCm, and autogpu supports NVIDIA GPUs only")
        if _config_property() is None:
            missing = {"Context.config": "autogpu chooses GPUs at import and claims none"}
            return Hooks(version, missing=missing, variables={FORCE_GROWTH: "true"})
        effects = {path: effect for path, (_, effect) in entry_points.HOOKS.items() if effect}
        found = [_short(path) for path in effects if _find(path)[-1]]
        missing = {_short(path): effect for path, effect in effects.items() if not _find(path)[-1]}
        return Hooks(version, ("Context.config", *found), missing)

    def install_hooks(self, hooks: Hooks) -> None:
        config = _config_property()
        if is_hooked(config.fget):
            return
        context = module_of(_CONTEXT).Context
        has_xla_devices = hooks.version.startswith(("1.", "2.0.", "2.1.", "2.2.", "2.3."))
        resolver = PlacementResolver(self, has_xla_devices=has_xla_devices)
        context.config = property(hooked(config.fget, entry_points.config, resolver), doc=config.__doc__)
        for path, (hook, _) in entry_points.HOOKS.items():
            _hook(path, hook, resolver)
        placement = context.__dict__.get("soft_device_placement")
        if isinstance(placement, property) and placement.fset is not None:
            setter = hooked(placement.fset, entry_points.soft_device_placement, resolver)
            context.soft_device_placement = placement.setter(setter)
        originals = [_hook(path, hook, resolver) for path, hook in _NAMING.items()]
        resolver.while_names_count = [each for each in originals if each[-1]]

    @staticmethod
    def peak_bytes() -> int:
        """Return TensorFlow's peak; 0 before version 2.5 and for sessions, because TensorFlow has no count then."""
        return _counted("peak")

    @classmethod
    def current_bytes(cls) -> int:
        return _counted("current")

    @classmethod
    def needed_bytes(cls, *, growth: bool) -> int:
        """Return the peak; with ``growth``, 1.5 times the peak, for memory that the allocator takes but does not count.

        The allocator adds a region of twice the size of the last region, or of the next power of two above the tensor,
        or less if the GPU has no more memory. The rest of a region can't hold a larger tensor. Source:
        ``BFCAllocator::Extend``.

        autogpu adds a tenth to each need, which makes the factor 1.65. By the allocator's rules, one of 2,700 random
        mixes of tensors of 16 MiB to 8 GiB needed more. The next power of two above the peak would reserve as much
        memory, but was too small for 126 of these mixes.
        """
        peak = cls.peak_bytes()
        return peak * 3 // 2 if growth else peak

    @staticmethod
    def out_of_memory(error: BaseException) -> OutOfMemory | None:
        name = type(error).__name__
        text = str(error)
        if not type(error).__module__.startswith("tensorflow"):
            return None
        # A copy to a full GPU fails with another error.
        is_full = (name == "InternalError" and "Dst tensor is not initialized" in text) or name == _FULL
        # Accept a text without a device: it is from a graph that XLA has compiled.
        if not is_full or "by allocator cpu" in text:
            return None
        found = OutOfMemory.in_text(text, "allocat(?:e|ing) SIZE", r"GPU[_:](\d+)(?:_bfc| in order to run)")
        return replace(found, asked_bytes=found.asked_bytes or _tensor_bytes(text))


def _counted(name: str) -> int:
    context = getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)
    # Don't ask a context that has not started yet: the question would start it.
    if context is None or context._context_handle is None or not hasattr(context, "get_memory_info"):
        return 0
    return max([context.get_memory_info(gpu.name)[name] for gpu in context.list_logical_devices("GPU")], default=0)


def _hook(path: str, hook: Callable[..., Any], resolver: PlacementResolver) -> tuple[Any, str, Any]:
    """Hook the function if it exists. Return the result of :func:`_find`."""
    holder, name, original = _find(path)
    if original:
        setattr(holder, name, hooked(original, hook, resolver))
    return holder, name, original


def _config_property() -> Any:
    """Return ``Context.config``, which every other hook needs; ``None`` if it is not as autogpu expects it."""
    module: Any = module_of(_CONTEXT)
    own: Any = getattr(module, "Context", None)
    config: Any = getattr(own, "__dict__", {}).get("config")
    is_known = hasattr(own, "_initialize_physical_devices") and hasattr(module, "config_pb2")
    return config if is_known and isinstance(config, property) and config.fget is not None else None


def _short(path: str) -> str:
    return ".".join(path.split(".")[-2:])


def _find(path: str) -> tuple[Any, str, Any]:
    """Return a function's module or class, its name there, and the function itself, or ``None`` if that is missing."""
    place, _, name = path.rpartition(".")
    module, _, owner = place.rpartition(".")
    holder = module_of(place) or getattr(module_of(module), owner, None)
    found: Any = getattr(holder, "__dict__", {}).get(name)
    return holder, name, found if callable(found) else None


def _is_built_with_rocm() -> bool:
    build: Any = module_of("platform.build_info")
    info = getattr(build, "build_info", None)
    return bool(info.get("is_rocm_build") if isinstance(info, dict) else getattr(build, "is_rocm_build", False))


def _tensor_bytes(text: str) -> int:
    found = re.search(r"shape ?\[([\d,]*)\] and type ([a-z]+)(\d*)", text)
    if not found:
        return 0
    size = int(found.group(3)) // 8 if found.group(3) else _BYTES.get(found.group(2), 0)
    for length in filter(None, found.group(1).split(",")):
        size *= int(length)
    return size
