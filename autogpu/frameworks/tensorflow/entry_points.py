"""Hooks of calls in which a script gives a ConfigProto of its own, names the device of a result, or lists GPUs.

TensorFlow merges nothing into such a proto, so it is completed here, in a copy: the script's own object may be used
again, and compared.
"""

from __future__ import annotations

import os
from typing import Any

from autogpu.frameworks.base import GpuListing
from autogpu.frameworks.tensorflow.names import caller_named
from autogpu.frameworks.tensorflow.settings import asked_count, has_invalid_list, listed_ordinals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.frameworks.tensorflow.placement import PlacementResolver


def session(
    original: Any,
    resolver: PlacementResolver,
    self: Any,
    target: Any = "",
    graph: Any = None,
    config: Any = None,
    **kwargs: Any,
) -> None:
    """``BaseSession.__init__``: ``tf.Session``, ``InteractiveSession``, Keras' and estimators'."""
    # TensorFlow's __del__ looks for it, also in a session that the policy refuses.
    self._session = None
    resolver.named.note_graph(graph)
    if target:
        # Its devices are made where the target is; a target in this process has made them already.
        original(self, target, graph, resolver.softened(config), **kwargs)
        return
    # Without a proto TensorFlow reads Context.config, which completes itself.
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
    """``Server.__init__``: ``tf.distribute.Server``, ``tf.train.Server``."""
    given = server_or_cluster_def
    own = getattr(given, "default_session_config", None)
    if own is not None:
        # The script's two protos, as TensorFlow merges them: what is completed must not be merged once more.
        given = type(given)()
        given.CopyFrom(server_or_cluster_def)
        given.ClearField("default_session_config")
    config = resolver.completed(_merged(own, config))
    original(self, given, job_name, task_index, protocol, config, *args, **kwargs)
    resolver.on_context()


def _merged(base: Any, proto: Any) -> Any:
    if base is None:
        return proto
    merged = type(base)()
    merged.CopyFrom(base)
    if proto is not None:
        merged.MergeFrom(proto)
    return merged


def mirrored(
    original: Any,
    resolver: PlacementResolver,
    self: Any,
    container_strategy: Any,
    devices: Any = None,
    *args: Any,
    **kwargs: Any,
) -> None:
    """``MirroredExtended.__init__``: a strategy over all GPUs that TensorFlow has, or over those that it is told.

    By how many logical and physical GPUs there are, TensorFlow judges whether two replicas are on one card, where NCCL
    fails: cards that the process does not use must not count.
    """
    with resolver.only_cards_in_use():
        original(self, container_strategy, devices, *args, **kwargs)
    if devices is None:
        with resolver.allocator.guard():
            resolver.allocator.on_replicas("MirroredStrategy", len(self.worker_devices))


def on_named_device(original: Any, resolver: PlacementResolver, *args: Any, **kwargs: Any) -> Any:
    """A function that is told by name where its result is to be, which TensorFlow does not place softly."""
    resolver.named.note_arguments(*args, **kwargs)
    existing = resolver.existing
    return original(*map(existing, args), **{key: existing(value) for key, value in kwargs.items()})


def device_iterator(
    original: Any,
    resolver: PlacementResolver,
    self: Any,
    dataset: Any = None,
    devices: Any = None,
    *args: Any,
    **kwargs: Any,
) -> None:
    """``__init__`` of an iterator over shards of a dataset, each on a device: softly placed, they are the CPU's."""
    is_list = isinstance(devices, (list, tuple))
    original(self, dataset, list(map(resolver.existing, devices)) if is_list else devices, *args, **kwargs)
    self._devices = devices  # by these it is asked for the next elements


def list_devices(original: Any, resolver: PlacementResolver, self: Any) -> list[Any]:
    """``BaseSession.list_devices``, which ``multi_gpu_model`` takes for the GPUs that may be named.

    In a session that was made before, the towers are placed softly on the GPUs that it has.
    """
    devices = list(original(self))
    gpus = [device for device in devices if device.device_type == "GPU"]
    if gpus and caller_named("multi_gpu_model"):
        last, stem = gpus[-1], gpus[-1].name.rsplit(":", 1)[0]
        for number in range(len(gpus), resolver.gpu_count):
            devices.append(type(last)(f"{stem}:{number}", "GPU", last.memory_limit_bytes, last.incarnation))
    return devices


# The memory that TensorFlow up to 2.3 lists for its XLA devices, on which it makes contexts to list them, and its CPU.
_XLA_BYTES = 16 << 30
_CPU_BYTES = 256 << 20


def list_local_devices(original: Any, resolver: PlacementResolver, session_config: Any = None) -> Any:
    """``device_lib.list_local_devices``, and ``tf.test.gpu_device_name`` and ``is_gpu_available`` which call it.

    TensorFlow makes a context on every GPU that it lists. Here the other devices are its own answer, and the GPUs that
    there would be without autogpu are composed from what the driver tells without a context.
    """
    devices = None  # also where that fails
    with resolver.lock, resolver.allocator.guard():
        devices = _composed(original, resolver, session_config)
    return original(session_config) if devices is None else devices


def _composed(original: Any, resolver: PlacementResolver, session_config: Any) -> list[Any] | None:
    """``None`` where TensorFlow's own answer has to do: it lists no GPU then, or autogpu knows nothing of them."""
    proto = resolver.config_proto()
    if isinstance(session_config, resolver.config_proto):
        proto.CopyFrom(session_config)
    elif session_config is not None:
        return None
    wanted = asked_count(proto)
    resolver.allocator.prepare()
    count = len(resolver.listed_gpus())
    if wanted == 0 or not count or has_invalid_list(proto, count):
        return None
    gpus = resolver.allocator.listing()
    if gpus is None:
        return None
    named = listed_ordinals(proto, count) or range(count)
    ordinals = [ordinal for ordinal in named if ordinal < min(len(gpus), count)][:wanted]
    kind = original.__globals__["device_attributes_pb2"].DeviceAttributes
    fraction = proto.gpu_options.per_process_gpu_memory_fraction
    entries = [_gpu_entry(kind, number, o, gpus[o], fraction) for number, o in enumerate(ordinals)]
    if resolver.has_xla_devices:
        return _entries_beside_xla(kind, proto.device_count.get("CPU") or 1, ordinals) + entries
    proto.device_count["GPU"] = 0
    return [*original(proto), *entries]


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
        # Not from `random`, whose numbers the script may count on.
        incarnation=int.from_bytes(os.urandom(8), "little"),
        physical_device_desc=description,
    )
    entry.locality.SetInParent()
    return entry
