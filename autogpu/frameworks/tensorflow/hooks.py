"""Where TensorFlow is hooked into: its classes and modules as they are loaded, each once."""

from __future__ import annotations

import sys
from functools import partial

from autogpu.frameworks.base import Hooks
from autogpu.frameworks.tensorflow import context, entry_points, names
from autogpu.frameworks.tensorflow.placement import PlacementResolver
from autogpu.frameworks.tensorflow.settings import FORCE_GROWTH
from autogpu.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Mapping

    from autogpu.frameworks.base import GpuAllocator

_INSTALLED = "_autogpu_hook"

# TensorFlow 1.15 keeps its code in tensorflow_core; some of it is loaded under that name alone.
_ROOTS = ("tensorflow", "tensorflow_core")

_CONTEXT = "eager.context"
_PLAIN = "take what they would without autogpu"


@frozen
class _HookPoint:
    """A function that is replaced.

    Attributes:
        effect: What is not in force where a version lacks it; empty where nothing is, and it is not asked for.
        wrap: Given the original and the resolver, what takes its place.
    """

    module: str
    owner: str
    attribute: str
    effect: str
    wrap: Callable[[Any, PlacementResolver], Any]

    @property
    def name(self) -> str:
        return f"{self.owner or self.module.split('.')[-1]}.{self.attribute}"

    def holder(self) -> Any:
        module = _module(self.module)
        return getattr(module, self.owner, None) if self.owner else module

    def original(self) -> Any:
        """``None`` where this TensorFlow has nothing callable there."""
        found: Any = getattr(self.holder(), "__dict__", {}).get(self.attribute)
        return found if callable(found) else None


_POINTS = (
    _HookPoint(
        _CONTEXT,
        "Context",
        "set_visible_devices",
        "a script that makes every GPU visible gets the policy's choice",
        context.set_visible_devices,
    ),
    _HookPoint(_CONTEXT, "Context", "_initialize_physical_devices", "", context.initialize_physical_devices),
    _HookPoint(
        _CONTEXT,
        "Context",
        "ensure_initialized",
        "the lease says what was assigned, not what the driver shows",
        lambda original, resolver: context.ensure_initialized(original, resolver, _module(_CONTEXT).Context),
    ),
    _HookPoint(
        "client.session", "BaseSession", "__init__", f"sessions with a ConfigProto {_PLAIN}", entry_points.session
    ),
    _HookPoint(
        "client.session",
        "BaseSession",
        "list_devices",
        "multi_gpu_model refuses GPUs that the process does not have",
        lambda original, resolver: names.list_devices(original, resolver.missing_devices),
    ),
    _HookPoint(
        "client.device_lib",
        "",
        "list_local_devices",
        "listing makes a context on each GPU",
        entry_points.list_local_devices,
    ),
    _HookPoint("training.server_lib", "Server", "__init__", f"servers {_PLAIN}", entry_points.server),
    _HookPoint(
        "distribute.mirrored_strategy",
        "MirroredExtended",
        "__init__",
        "its replicas are not counted",
        entry_points.mirrored,
    ),
    # What is told a device by name and is not placed softly: Tensor.gpu(1) and prefetch_to_device("/gpu:1").
    _HookPoint("framework.ops", "_EagerTensorBase", "_copy_nograd", "", entry_points.on_named_device),
    _HookPoint(
        "data.experimental.ops.prefetching_ops", "_CopyToDeviceDataset", "__init__", "", entry_points.on_named_device
    ),
    *(
        _HookPoint("data.ops.multi_device_iterator_ops", name, "__init__", "", entry_points.device_iterator)
        for name in ("MultiDeviceIterator", "MultiDeviceIteratorV2", "OwnedMultiDeviceIterator")
    ),
    # Readings of memory by a GPU's name. Each version has some of them.
    *(
        _HookPoint(_CONTEXT, "Context", name, "", partial(context.memory_reading, unused=unused))
        for name, unused in context.UNUSED_MEMORY.items()
    ),
)

# Strategies that are told their devices. Not every version has each, and a name that is not seen is placed softly.
_STRATEGIES = (
    ("distribute.mirrored_strategy", "MirroredExtended"),
    ("distribute.one_device_strategy", "OneDeviceExtended"),
    ("distribute.central_storage_strategy", "CentralStorageStrategy"),
    ("distribute.central_storage_strategy", "CentralStorageStrategyV1"),
)


def find_hooks() -> Hooks:
    """See :meth:`autogpu.frameworks.base.Framework.find_hooks`."""
    version = str(getattr(sys.modules.get("tensorflow"), "__version__", "?"))
    if _is_built_with_rocm():
        return Hooks(version, obstacle="this TensorFlow is built for ROCm, and autogpu supports NVIDIA GPUs only")
    if _config_property() is None:
        return Hooks(version, missing={"Context.config": "autogpu chooses at the import, and claims nothing"})
    needed = [point for point in _POINTS if point.effect]
    found = [point.name for point in needed if point.original()]
    missing = {point.name: point.effect for point in needed if not point.original()}
    return Hooks(version, ("Context.config", *found), missing, has_essential=True)


def install_hooks(allocator: GpuAllocator) -> Hooks:
    """See :meth:`autogpu.frameworks.base.Framework.install_hooks`."""
    hooks, config = find_hooks(), _config_property()
    if not hooks.has_essential or hooks.obstacle or getattr(config.fget, _INSTALLED, False):
        return hooks
    module: Any = _module(_CONTEXT)
    resolver = PlacementResolver(
        allocator,
        module,
        default_graph=_default_graph,
        sees_choice=hasattr(module.Context, "set_visible_devices"),
        has_xla_devices=hooks.version.startswith(("1.", "2.0.", "2.1.", "2.2.", "2.3.")),
    )
    wrapped = context.config(config.fget, resolver)
    setattr(wrapped, _INSTALLED, True)
    module.Context.config = property(wrapped, doc=config.__doc__)
    for point in _POINTS:
        original = point.original()
        if original:
            setattr(point.holder(), point.attribute, point.wrap(original, resolver))
    placement = module.Context.__dict__.get("soft_device_placement")
    if isinstance(placement, property) and placement.fset is not None:
        module.Context.soft_device_placement = placement.setter(context.soft_device_placement(placement.fset, resolver))
    _note_names_until_first_context(module, resolver)
    return hooks


def _note_names_until_first_context(module: Any, resolver: PlacementResolver) -> None:
    """Eager code comes through ``context.device`` at each operation: it is itself again after the first context."""
    holders = [(module, "device"), *((getattr(_module(path), name, None), "__init__") for path, name in _STRATEGIES)]
    owners: list[tuple[Any, str, Any, Any]] = []
    for owner, attribute in holders:
        original = getattr(owner, attribute, None)
        if owner is not None and callable(original):
            owners.append((owner, attribute, original, names.noted(original, resolver.named)))

    def put_back() -> None:
        for owner, attribute, original, ours in owners:
            if getattr(owner, attribute, None) is ours:
                setattr(owner, attribute, original)

    for owner, attribute, _, ours in owners:
        setattr(owner, attribute, ours)
    resolver.on_first_context = put_back


def fallback_environment(environ: Mapping[str, str], growth: bool) -> dict[str, str]:
    """See :meth:`autogpu.frameworks.base.Framework.fallback_environment`."""
    return {FORCE_GROWTH: "true"} if growth and FORCE_GROWTH not in environ else {}


def _config_property() -> Any:
    """``Context.config``, without which nothing else is of use; ``None`` where it is not as it should be."""
    module: Any = _module(_CONTEXT)
    own: Any = getattr(module, "Context", None)
    config: Any = getattr(own, "__dict__", {}).get("config")
    is_known = hasattr(own, "_initialize_physical_devices") and hasattr(module, "config_pb2")
    return config if is_known and isinstance(config, property) and config.fget is not None else None


def _module(path: str) -> Any:
    for root in _ROOTS:
        if f"{root}.python.{path}" in sys.modules:
            return sys.modules[f"{root}.python.{path}"]
    return None


def _default_graph() -> Any:
    """TensorFlow's own function makes one where there is none, and eager execution can't be enabled after that."""
    graphs: Any = getattr(_module("framework.ops"), "_default_graph_stack", None)
    entered = getattr(graphs, "stack", None)
    return entered[-1] if entered else getattr(graphs, "_global_default_graph", None)


def _is_built_with_rocm() -> bool:
    build: Any = _module("platform.build_info")
    info = getattr(build, "build_info", None)
    return bool(info.get("is_rocm_build") if isinstance(info, dict) else getattr(build, "is_rocm_build", False))
