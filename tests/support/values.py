"""Plain values for tests of decisions."""

from __future__ import annotations

from autogpu.devices.model import Device, Inventory, Process
from autogpu.reporting.text import GIB


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


def inventory(*devices, **fields):
    return Inventory(tuple(devices), **fields)
