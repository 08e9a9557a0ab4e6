"""The hooks of TensorFlow's entry points. They apply the placement of the process before TensorFlow gets its GPUs.

TensorFlow makes the eager context from the property ``Context.config``. While TensorFlow computes the ConfigProto
there, autogpu completes the script's settings. So TensorFlow's own rules and errors apply to the proto.

TensorFlow merges nothing into a ConfigProto that a script passes, so autogpu completes that proto itself. It does so in
a copy, because the script may use its own object again, or compare it.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from typing import Any, Callable, Iterator, Mapping

from autogpu.frameworks.base import caller_named
from autogpu.frameworks.model import GpuListing
from autogpu.frameworks.tensorflow.placement import SCRIPT_CHOSE
from autogpu.frameworks.tensorflow.settings import (
    DevicePlacement,
    asked_count,
    has_invalid_list,
    listed_ordinals,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.frameworks.tensorflow.placement import PlacementResolver


def config(original: Any, resolver: PlacementResolver, context: Any) -> Any:
    framework = resolver.framework
    if framework.assignment is None and _is_only_a_question(sys._getframe(2), original):
        return original(context)
    with framework.lock, ExitStack() as settings:
        with framework.guard():
            framework.prepare()
        # The original begins with this call, too. autogpu reads the driver in the meantime.
        context._initialize_physical_devices()
        placement = None
        with framework.guard():
            gpus = resolver.gpus_of(context)
            placement = resolver.resolve_placement(resolver.settings_of(context, gpus))
            if placement is not None:
                settings.enter_context(_completed(context, gpus, placement))
        proto = original(context)
        if placement is not None:
            with framework.guard():
                resolver.apply(placement, proto)
        resolver.on_context()
        return proto


def initialize_physical_devices(
    original: Any, resolver: PlacementResolver, context: Any, *args: Any, **kwargs: Any
) -> None:
    """Prepare before ``Context._initialize_physical_devices``. Every listing begins with it, and it starts CUDA."""
    if context._physical_devices is None:
        with resolver.framework.guard():
            resolver.framework.on_listing()
    original(context, *args, **kwargs)


def set_visible_devices(
    original: Any, resolver: PlacementResolver, context: Any, devices: Any, device_type: Any = None
) -> None:
    original(context, devices, device_type)
    # TensorFlow itself calls this for every config that is passed to enable_eager_execution. That is not a choice.
    if device_type in (None, "GPU") and sys._getframe(2).f_code.co_name != "_import_config":
        # An explicit choice of all GPUs leaves no trace in TensorFlow's own state.
        setattr(context, SCRIPT_CHOSE, True)


def soft_device_placement(original: Any, resolver: PlacementResolver, context: Any, enable: Any) -> None:
    """Set ``Context.soft_device_placement``, but leave it on if GPUs are missing that would exist without autogpu.

    With soft placement off, the name of a missing GPU would raise. Before TensorFlow has its GPUs, no GPU is missing:
    autogpu will make a logical GPU for every name.
    """
    original(context, enable or resolver.lacks(resolver.gpu_count - 1))


def memory_reading(original: Any, resolver: PlacementResolver, context: Any, device: Any) -> Any:
    """Read a GPU's memory by the GPU's name; the first GPU's if this process does not have the named GPU."""
    context.ensure_initialized()  # the original begins with this, too; before, the GPUs are unknown
    return original(context, resolver.existing(device))


def _is_only_a_question(caller: Any, original: Any) -> bool:
    # Getters such as tf.debugging.get_log_device_placement read Context.config as well. A script that only calls these
    # must not claim a GPU. In TensorFlow's context module, only ensure_initialized makes a context from the property.
    name: str = caller.f_code.co_name
    return caller.f_globals is original.__globals__ and name != "ensure_initialized"


@contextmanager
def _completed(context: Any, gpus: list[Any], placement: DevicePlacement) -> Iterator[None]:
    """Fill the placement into settings of the context that the script left unset. Restore the settings afterwards.

    Leave out limits: the settings can't hold growth and a limit at the same time. Only the ConfigProto can.
    """
    visible = context._visible_device_list
    growths = context._memory_growth_map
    placed = [gpus[ordinal] for ordinal in placement.ordinals]
    unset = [gpu for gpu in placed if growths[gpu] is None and placement.growth is not None]
    growths.update(dict.fromkeys(unset, placement.growth))
    context._visible_device_list = [device for device in visible if device not in gpus] + placed
    try:
        yield
    finally:
        context._visible_device_list = visible
        growths.update(dict.fromkeys(unset))


def session(
    original: Any,
    resolver: PlacementResolver,
    self: Any,
    target: Any = "",
    graph: Any = None,
    config: Any = None,
    **kwargs: Any,
) -> None:
    """Complete the ConfigProto of a session: ``tf.Session``, ``InteractiveSession``, that of Keras or an estimator."""
    # TensorFlow's __del__ reads this attribute, even if the policy refuses the session.
    self._session = None
    resolver.named.note_graph(graph)
    if target:
        # The server at the target makes the session's devices. A server in this process has made them already.
        original(self, target, graph, resolver.softened(config), **kwargs)
        return
    # Without a proto TensorFlow reads Context.config, whose hook completes it.
    config = config if config is None else resolver.completed(config)
    original(self, target, graph, config, **kwargs)
    resolver.on_context()


def server(
    original: Any,
    resolver: PlacementResolver,
    self: Any,
    server_or_cluster_def: Any,
    job_name: Any = None,
    task_index: Any = None,
    protocol: Any = None,
    config: Any = None,
    *args: Any,
    **kwargs: Any,
) -> None:
    given = server_or_cluster_def
    own = getattr(given, "default_session_config", None)
    if own is not None:
        # Merge the script's two protos here, as TensorFlow would, so that TensorFlow merges nothing into the copy.
        given = deepcopy(given)
        merged = deepcopy(own)
        given.ClearField("default_session_config")
        if config is not None:
            merged.MergeFrom(config)
        config = merged
    original(self, given, job_name, task_index, protocol, resolver.completed(config), *args, **kwargs)
    resolver.on_context()


def mirrored(
    original: Any,
    resolver: PlacementResolver,
    self: Any,
    container_strategy: Any,
    devices: Any = None,
    *args: Any,
    **kwargs: Any,
) -> None:
    """Make a ``MirroredStrategy`` over all GPUs that TensorFlow has, or over the script's ``devices``.

    TensorFlow compares the numbers of logical and physical GPUs to find out if two replicas are on one card, because
    NCCL fails then. So cards that the process does not use must not count.
    """
    resolver.named.note_arguments(devices)
    with resolver.only_cards_in_use():
        found = resolver.existing_replicas(devices)
        _report_late_replicas(resolver, container_strategy, found, devices)
        original(self, container_strategy, found, *args, **kwargs)
    if devices is None:
        with resolver.framework.guard():
            resolver.framework.on_replicas("MirroredStrategy", len(self.worker_devices))


def one_device(
    original: Any, resolver: PlacementResolver, self: Any, container_strategy: Any, device: Any, *args: Any
) -> None:
    resolver.named.note_arguments(device)
    resolver.report_late_names()
    original(self, container_strategy, resolver.existing(device), *args)


def central_storage(
    original: Any,
    resolver: PlacementResolver,
    self: Any,
    compute_devices: Any = None,
    parameter_device: Any = None,
    *args: Any,
    **kwargs: Any,
) -> None:
    resolver.named.note_arguments(compute_devices, parameter_device)
    found = resolver.existing_replicas(compute_devices)
    _report_late_replicas(resolver, self, found, compute_devices)
    original(self, found, resolver.existing(parameter_device), *args, **kwargs)


def _report_late_replicas(resolver: PlacementResolver, strategy: Any, found: Any, wanted: Any) -> None:
    if isinstance(wanted, (list, tuple)):
        resolver.report_late_names(type(strategy).__name__, len(found), len(wanted))


def on_named_device(original: Any, resolver: PlacementResolver, *args: Any, **kwargs: Any) -> Any:
    """Call the function with the names of existing GPUs in place of missing ones.

    The function does not place softly, or makes the first context itself.
    """
    resolver.named.note_arguments(*args, **kwargs)
    resolver.report_late_names()
    existing = resolver.existing
    return original(*map(existing, args), **{key: existing(value) for key, value in kwargs.items()})


def device(original: Any, resolver: PlacementResolver, name: Any) -> Any:
    """Note the device name of eager code (``context.device``). TensorFlow places a late name softly."""
    if not resolver.named.is_known(name):
        resolver.named.note([name])
        resolver.report_late_names()
    return original(name)


def graph_device(original: Any, resolver: PlacementResolver, self: Any, name: Any) -> Any:
    if not resolver.named.is_known(name):
        resolver.named.note([name])
        resolver.report_late_names()
    return original(self, name)


def device_iterator(
    original: Any,
    resolver: PlacementResolver,
    self: Any,
    dataset: Any = None,
    devices: Any = None,
    *args: Any,
    **kwargs: Any,
) -> None:
    """Make an iterator over the shards of a dataset, with each shard on a device that exists.

    Soft placement would put the shard of a missing GPU on the CPU.
    """
    is_list = isinstance(devices, (list, tuple))
    original(self, dataset, list(map(resolver.existing, devices)) if is_list else devices, *args, **kwargs)
    self._devices = devices  # the script later asks for elements by these names


def list_devices(original: Any, resolver: PlacementResolver, self: Any) -> list[Any]:
    """List a session's devices. For ``multi_gpu_model``, add the GPUs that would exist without autogpu.

    ``multi_gpu_model`` refuses a GPU that is not in this list. In a session that exists already, soft placement puts
    the towers of the added GPUs on the GPUs that the session has.
    """
    devices = list(original(self))
    gpus = [device for device in devices if device.device_type == "GPU"]
    if gpus and caller_named("multi_gpu_model"):
        last = gpus[-1]
        stem = gpus[-1].name.rsplit(":", 1)[0]
        for number in range(len(gpus), resolver.gpu_count):
            devices.append(type(last)(f"{stem}:{number}", "GPU", last.memory_limit_bytes, last.incarnation))
    return devices


# Memory that TensorFlow up to 2.3 lists for an XLA device, and for a CPU. TensorFlow itself makes a context on each XLA
# device to list it.
_XLA_BYTES = 16 << 30
_CPU_BYTES = 256 << 20


def list_local_devices(original: Any, resolver: PlacementResolver, session_config: Any = None) -> Any:
    """List the local devices without a context on any GPU.

    ``tf.test.gpu_device_name`` and ``is_gpu_available`` call the function as well. TensorFlow makes a context on every
    GPU that it lists. So TensorFlow lists only the other devices here. autogpu adds the GPUs that would exist without
    autogpu, with attributes that the driver reports without a context.
    """
    devices = None  # remains None if the guarded code fails
    with resolver.framework.lock, resolver.framework.guard():
        devices = _composed(original, resolver, session_config)
    return original(session_config) if devices is None else devices


def _composed(original: Any, resolver: PlacementResolver, session_config: Any) -> list[Any] | None:
    """Return the devices; ``None`` if TensorFlow will raise or list no GPU, or the driver reports no attributes."""
    proto = resolver.copied(session_config)
    if proto is None:
        return None
    wanted = asked_count(proto)
    resolver.framework.prepare()
    count = len(resolver.listed_gpus())
    if wanted == 0 or not count or has_invalid_list(proto, count):
        return None
    gpus = resolver.framework.listing()
    if gpus is None:
        return None
    ordinals = _ordinals_below(min(len(gpus), count), proto, count)[:wanted]
    kind = original.__globals__["device_attributes_pb2"].DeviceAttributes
    fraction = proto.gpu_options.per_process_gpu_memory_fraction
    entries = [_gpu_entry(kind, number, o, gpus[o], fraction) for number, o in enumerate(ordinals)]
    if resolver.has_xla_devices:
        return _entries_beside_xla(kind, proto.device_count.get("CPU") or 1, ordinals) + entries
    proto.device_count["GPU"] = 0
    return [*original(proto), *entries]


def _ordinals_below(end: int, proto: Any, count: int) -> list[int]:
    named = listed_ordinals(proto, count) or range(count)
    return [ordinal for ordinal in named if ordinal < end]


def _entries_beside_xla(kind: Any, cpu_count: int, ordinals: list[int]) -> list[Any]:
    xla = [("XLA_CPU", 0), *(("XLA_GPU", ordinal) for ordinal in ordinals)]
    cpus = [_entry(kind, "CPU", cpu, _CPU_BYTES) for cpu in range(cpu_count)]
    return cpus + [_entry(kind, name, number, _XLA_BYTES, f"device: {name} device") for name, number in xla]


def _gpu_entry(kind: Any, number: int, ordinal: int, gpu: GpuListing, fraction: float) -> Any:
    memory_limit = int(gpu.total_bytes * fraction) if fraction else gpu.memory_bytes
    cuda = gpu.attributes
    description = (
        f"device: {ordinal}, name: {cuda.name}, pci bus id: {cuda.pci_bus_id}, "
        f"compute capability: {cuda.compute_capability}"
    )
    entry = _entry(kind, "GPU", number, memory_limit, description)
    entry.locality.bus_id = 1
    entry.locality.links.SetInParent()
    return entry


def _entry(kind: Any, device_type: str, number: int, memory_limit: int, description: str = "") -> Any:
    entry = kind(
        name=f"/device:{device_type}:{number}",
        device_type=device_type,
        memory_limit=memory_limit,
        # Not from `random`, because the script may rely on the sequence of its numbers.
        incarnation=int.from_bytes(os.urandom(8), "little"),
        physical_device_desc=description,
    )
    entry.locality.SetInParent()
    return entry


_PLAIN = "take the same GPUs and memory as without autogpu"

# Hook and consequence, keyed by function. A hook's first arguments are the original function and the resolver. The
# consequence is a phrase for a version that lacks the function; "" if there is none, so that it is not reported.
HOOKS: Mapping[str, tuple[Callable[..., Any], str]] = {
    "eager.context.Context.set_visible_devices": (
        set_visible_devices,
        "if a script makes all GPUs visible, the policy still chooses",
    ),
    "eager.context.Context._initialize_physical_devices": (initialize_physical_devices, ""),
    "client.session.BaseSession.__init__": (session, f"sessions with a ConfigProto {_PLAIN}"),
    "client.session.BaseSession.list_devices": (
        list_devices,
        "multi_gpu_model refuses GPUs that this process did not get",
    ),
    "client.device_lib.list_local_devices": (list_local_devices, "listing makes a context on each GPU"),
    "training.server_lib.Server.__init__": (server, f"servers {_PLAIN}"),
    "distribute.mirrored_strategy.MirroredExtended.__init__": (
        mirrored,
        "autogpu does not report missing replicas of MirroredStrategy",
    ),
    "distribute.one_device_strategy.OneDeviceExtended.__init__": (one_device, ""),
    **{
        f"distribute.central_storage_strategy.{name}.__init__": (central_storage, "")
        for name in ("CentralStorageStrategy", "CentralStorageStrategyV1")
    },
    # The devices over which DTensor distributes tensors.
    "dtensor.python.layout.Mesh.__init__": (on_named_device, ""),
    # Tensor.gpu(1) and prefetch_to_device("/gpu:1") are not placed softly.
    "framework.ops._EagerTensorBase._copy_nograd": (on_named_device, ""),
    "data.experimental.ops.prefetching_ops._CopyToDeviceDataset.__init__": (on_named_device, ""),
    **{
        f"data.ops.multi_device_iterator_ops.{name}.__init__": (device_iterator, "")
        for name in ("MultiDeviceIterator", "MultiDeviceIteratorV2", "OwnedMultiDeviceIterator")
    },
    # Functions that read a GPU's memory by the GPU's name. Each version has some of them.
    **{
        f"eager.context.Context.{name}": (memory_reading, "")
        for name in ("get_memory_info", "get_memory_usage", "get_total_memory_usage", "reset_memory_stats")
    },
}
