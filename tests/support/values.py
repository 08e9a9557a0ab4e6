"""Plain values for tests of decisions."""

from __future__ import annotations

from typing import Any, Sequence, TypedDict

from autogpu.caps import Cap, CapCause
from autogpu.devices.model import ComputeMode, Device, Inventory, Process, UnreadableDevice
from autogpu.policy import KEYS, Policy
from autogpu.text import GIB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing_extensions import Unpack

    from autogpu.devices.model import FailureCause, Topology


class DeviceFields(TypedDict, total=False):
    """Fields of a device that a test may set."""

    uuid: str
    memory_used_bytes: int | None
    compute_processes: tuple[Process, ...] | None
    graphics_processes: tuple[Process, ...] | None
    active_pids: Sequence[int] | None
    compute_mode: ComputeMode | None
    mig_enabled: bool
    parent: str | None
    instance: int | None
    has_mps: bool
    is_small: bool
    remapping_failed: bool
    remapping_pending: bool
    retirement_pending: bool
    uncorrected_errors: int
    temperature_celsius: int | None
    power_watts: int | None


class GpuFields(DeviceFields, total=False):
    """The keywords of :func:`gpu`."""

    total_gib: float | None
    used_gib: float | None
    busy: int | None
    pids: Sequence[int]
    name: str


class InventoryFields(TypedDict, total=False):
    """Fields of an inventory besides its devices."""

    unreadable: tuple[UnreadableDevice, ...]
    driver_version: str | None
    failure: str | None
    failure_cause: FailureCause | None
    denied: int
    topology: Topology


def gpu(
    index: int = 0,
    *,
    total_gib: float | None = 24.0,
    used_gib: float | None = 0.0,
    busy: int | None = 0,
    pids: Sequence[int] = (),
    name: str = "NVIDIA TITAN RTX",
    **fields: Unpack[DeviceFields],
) -> Device:
    """Return a GPU without missing readings. The processes ``pids`` use equal parts of ``used_gib``."""
    total = None if total_gib is None else int(total_gib * GIB)
    used = None if used_gib is None else int(used_gib * GIB)
    values: DeviceFields = {
        "uuid": f"GPU-{index:08x}-aaaa-bbbb-cccc-000000000000",
        "memory_used_bytes": used,
        "compute_processes": tuple(Process(pid, (used or 0) // len(pids)) for pid in pids),
        "graphics_processes": (),
        "compute_mode": ComputeMode.DEFAULT,
        **fields,
    }
    return Device(index=index, name=name, memory_total_bytes=total, utilization_percent=busy, **values)


def cut(index: int = 0, *sizes_gib: float, **fields: Unpack[GpuFields]) -> tuple[Device, ...]:
    """Return a card in MIG mode, followed by one instance for each size."""
    values: GpuFields = {"mig_enabled": True, "busy": None, "name": "NVIDIA A100", **fields}
    return (gpu(index, **values), *(instance(index, number, total_gib=size) for number, size in enumerate(sizes_gib)))


def instance(index: int = 0, number: int = 0, **fields: Unpack[GpuFields]) -> Device:
    """Return a MIG instance of the card with this index. It has 5 GiB by default; ``total_gib`` changes that."""
    total_gib = fields.get("total_gib") or 5
    values: GpuFields = {
        "uuid": f"MIG-{index:08x}-{number:04x}-bbbb-cccc-000000000000",
        "name": f"NVIDIA A100 MIG {max(1, int(total_gib) // 5)}g.{int(total_gib)}gb",
        "busy": None,
        "parent": gpu(index).uuid,
        "instance": number,
        "total_gib": total_gib,
        **fields,
    }
    return gpu(index, **values)


def inventory(*devices: Device, **fields: Unpack[InventoryFields]) -> Inventory:
    return Inventory(tuple(devices), **fields)


def policy_of(**fields: Any) -> Policy:
    """Return a policy, and fail for a value that a user can't set, such as a misspelt word."""
    policy = Policy(**fields)
    for key in KEYS:
        value = getattr(policy, key.attribute)
        assert key.kind.read(key.kind.plain(value)) == value, f"{key.dotted} can't be {value!r}"
    return policy


def unreadable(*indices: int) -> tuple[UnreadableDevice, ...]:
    return tuple(UnreadableDevice(index, "lost") for index in indices)


def limited_to(size_bytes: int) -> Cap:
    return Cap(size_bytes, CapCause.LIMIT)
