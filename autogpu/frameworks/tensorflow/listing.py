"""``device_lib.list_local_devices``: shows the GPUs that there would be without autogpu, and takes none of them.

TensorFlow makes a context on every GPU that it lists. Here the other devices are its own answer, and the GPUs are
composed from what the driver tells without a context. So a script or a helper that only counts GPUs counts right.
"""

from __future__ import annotations

import functools
import os

from autogpu.frameworks.tensorflow.proto import asked_count, has_invalid_list, listed_ordinals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from autogpu.frameworks.base import GpuListing
    from autogpu.frameworks.tensorflow.placement import PlacementResolver

# What TensorFlow up to 2.3 says of its devices for XLA, on which it makes contexts to list them, and of its CPU.
_XLA_BYTES = 16 << 30
_CPU_BYTES = 256 << 20


def list_local_devices(original: Any, resolver: PlacementResolver) -> Any:
    """``device_lib.list_local_devices``, and ``tf.test.gpu_device_name`` and ``is_gpu_available`` which call it."""

    @functools.wraps(original)
    def list_local_devices(session_config: Any = None) -> Any:
        devices = None  # also where that fails
        with resolver.lock, resolver.allocator.guard():
            devices = _composed(original, resolver, session_config)
        return original(session_config) if devices is None else devices

    return list_local_devices


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
    ordinals = [ordinal for ordinal in named if ordinal < len(gpus)][:wanted]
    kind = original.__globals__["device_attributes_pb2"].DeviceAttributes
    if resolver.has_xla_devices:
        xla = [("XLA_CPU", 0), *(("XLA_GPU", ordinal) for ordinal in ordinals)]
        others = [_entry(kind, "CPU", cpu, _CPU_BYTES) for cpu in range(proto.device_count.get("CPU") or 1)]
        others += [_entry(kind, name, number, _XLA_BYTES, f"device: {name} device") for name, number in xla]
    else:
        proto.device_count["GPU"] = 0
        others = list(original(proto))
    fraction = proto.gpu_options.per_process_gpu_memory_fraction
    return others + [_gpu_entry(kind, number, o, gpus[o], fraction) for number, o in enumerate(ordinals)]


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
