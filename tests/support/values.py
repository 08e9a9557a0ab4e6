"""Plain values for tests of decisions."""

from autogpu.devices.model import Device, Inventory, Process, UnreadableDevice
from autogpu.lease import Cap, CapCause
from autogpu.text import GIB


def gpu(index=0, *, total_gib=24.0, used_gib=0.0, busy=0, pids=(), name="NVIDIA TITAN RTX", **fields):
    """A GPU that answers every question; ``pids`` share ``used_gib`` between them."""
    total = None if total_gib is None else int(total_gib * GIB)
    used = None if used_gib is None else int(used_gib * GIB)
    values = {
        "uuid": f"GPU-{index:08x}-aaaa-bbbb-cccc-000000000000",
        "index": index,
        "name": name,
        "memory_total_bytes": total,
        "memory_used_bytes": used,
        "utilization_percent": busy,
        "compute_processes": tuple(Process(pid, used // len(pids)) for pid in pids),
        "graphics_processes": (),
        "compute_mode": "default",
    }
    values.update(fields)
    return Device(**values)


def cut(index=0, *sizes_gib, **fields):
    """A card in MIG mode, and behind it an instance for each size."""
    card = gpu(index, mig_enabled=True, busy=None, name="NVIDIA A100", **fields)
    return (card, *(instance(index, number, total_gib=size) for number, size in enumerate(sizes_gib)))


def instance(index=0, number=0, *, total_gib=5.0, **fields):
    """A MIG instance of the card of that index."""
    values = {
        "uuid": f"MIG-{index:08x}-{number:04x}-bbbb-cccc-000000000000",
        "name": f"NVIDIA A100 MIG {max(1, int(total_gib) // 5)}g.{int(total_gib)}gb",
        "busy": None,
        "parent": gpu(index).uuid,
        "instance": number,
        **fields,
    }
    return gpu(index, total_gib=total_gib, **values)


def inventory(*devices, **fields):
    return Inventory(tuple(devices), **fields)


def unreadable(*indices):
    """GPUs that have fallen off the bus."""
    return tuple(UnreadableDevice(index, "lost") for index in indices)


def limited_to(size_bytes):
    """The cap of a limit."""
    return Cap(size_bytes, CapCause.LIMIT)
