"""Whether a GPU is free, held by an idle lease, or busy; and the memory that is left on it. Pure."""

from __future__ import annotations

from autogpu.frozen import replace
from autogpu.reporting.text import GIB
from autogpu.selection.model import Claim, Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Collection, Mapping, Sequence

    from autogpu.devices.model import Device, Inventory, Process

# A desktop, a browser and the driver itself hold some memory on a GPU on which nothing computes.
_DESKTOP_BYTES = GIB
_DESKTOP_SHARE = 0.05

# The driver keeps some for itself, a few hundred MiB on large GPUs.
_DRIVERS_OWN_BYTES = GIB

# Processes are hidden in containers and under WSL2; a GPU that worked half of the last seconds is not idle even so.
_BUSY_UTILIZATION_PERCENT = 50

# A notebook in which no cell has run for this long may share its GPU.
IDLE_LEASE_S = 30 * 60.0


def tier(device: Device, own_pid: int | None = None, claims: Sequence[Claim] = ()) -> Tier:
    """Free: no process computes on it and no lease claims it. A desktop's share of the memory does not count."""
    if claims:
        return Tier.IDLE_LEASE if _is_idle(device, own_pid, claims) else Tier.BUSY
    if other_processes(device, own_pid) or (device.utilization_percent or 0) >= _BUSY_UTILIZATION_PERCENT:
        return Tier.BUSY
    used = device.memory_used_bytes if device.memory_total_bytes is not None else None
    is_filled = used is not None and used - _bytes_of(device, {own_pid}) > _desktop_bytes(device)
    return Tier.BUSY if is_filled else Tier.FREE


def _desktop_bytes(device: Device) -> float:
    return max(_DESKTOP_BYTES, (device.memory_total_bytes or 0) * _DESKTOP_SHARE)


def _is_idle(device: Device, own_pid: int | None, claims: Sequence[Claim]) -> bool:
    holders = {pid for claim in claims for pid in claim.pids}
    return (
        _computes_nothing(device)
        and all(claim.age_s >= IDLE_LEASE_S for claim in claims)
        and all(process.pid in holders for process in other_processes(device, own_pid))
    )


def _computes_nothing(device: Device) -> bool:
    if device.parent is None:
        return device.utilization_percent == 0
    # Of a MIG instance the driver tells no utilization.
    return device.compute_processes == () and (device.memory_used_bytes or 0) <= _desktop_bytes(device)


def room_bytes(device: Device, own_pid: int | None = None, claims: Sequence[Claim] = ()) -> int | None:
    """What is neither used nor promised; ``None`` where the driver does not tell the memory.

    A holder counts with its claim or with what it uses, whichever is more; all other use is by unmanaged processes.
    Where a holder's own use can't be told apart it counts twice: that errs on the side of an empty GPU.
    """
    total, used = device.memory_total_bytes, device.memory_used_bytes
    if total is None or used is None:
        return None
    used -= _bytes_of(device, {own_pid})
    if claims and _is_idle(device, own_pid, claims):
        return total - used
    # Once for all claims: others wait for the mutex meanwhile, and there may be a thousand.
    used_by: dict[int, int] = {}
    for process in device.compute_processes or () if claims else ():
        used_by[process.pid] = used_by.get(process.pid, 0) + (process.memory_used_bytes or 0)
    promised = 0
    for claim in claims:
        uses = sum(used_by.get(pid, 0) for pid in set(claim.pids))
        used -= uses
        promised += max(claim.bytes, uses)
    return total - max(used, 0) - promised


def unclaimed_bytes(device: Device, wanted_bytes: int, claims: Sequence[Claim]) -> int:
    """Of what a job would claim, what is promised to no other job."""
    promised = sum(claim.bytes for claim in claims)
    return max(0, min(wanted_bytes, (device.memory_total_bytes or 1) - promised))


def other_processes(device: Device, own_pid: int | None) -> tuple[Process, ...]:
    """Those that compute on the GPU, apart from this one."""
    return tuple(process for process in device.compute_processes or () if process.pid != own_pid)


def unmanaged_processes(device: Device, claims: Sequence[Claim]) -> tuple[Process, ...]:
    """Those that compute on the GPU and are of no job."""
    holders = {pid for claim in claims for pid in claim.pids}
    return tuple(process for process in device.compute_processes or () if process.pid not in holders)


def own_memory_bytes(inventory: Inventory | None, uuids: Sequence[str], pid: int | None) -> Mapping[int, int]:
    """By CUDA ordinal, the bytes that process ``pid`` takes.

    A GPU is missing where NVML does not tell: inside a container that has process ids of its own, on WSL2.
    """
    ordinals = {uuid: ordinal for ordinal, uuid in enumerate(uuids)}
    by_uuid = {device.uuid: _bytes_of(device, {pid}) for device in (inventory.devices if inventory else ())}
    return {ordinals[uuid]: size for uuid, size in by_uuid.items() if uuid in ordinals and size}


def unlisted_bytes(device: Device) -> int:
    """Used by processes that the driver does not list; 0 where nothing can be said."""
    listed = [*(device.compute_processes or ()), *(device.graphics_processes or ())]
    sizes = [process.memory_used_bytes for process in listed]
    known = [size for size in sizes if size is not None]
    if device.memory_used_bytes is None or len(known) < len(sizes):
        return 0
    unlisted = device.memory_used_bytes - sum(known)
    return unlisted if unlisted > _DRIVERS_OWN_BYTES else 0


def compute_pids(inventory: Inventory | None) -> set[int]:
    """The processes that the driver lists on any GPU."""
    devices = inventory.devices if inventory else ()
    return {process.pid for device in devices for process in device.compute_processes or ()}


def without_processes(inventory: Inventory, pids: Collection[int]) -> Inventory:
    """The readings as if these processes, which have ended since, had been gone already."""
    devices = []
    for device in inventory.devices:
        used = device.memory_used_bytes
        remaining = tuple(process for process in device.compute_processes or () if process.pid not in pids)
        freed = _bytes_of(device, pids)
        used = None if used is None else used - freed
        devices.append(replace(device, compute_processes=remaining, memory_used_bytes=used))
    return replace(inventory, devices=tuple(devices))


def _bytes_of(device: Device, pids: Collection[int | None]) -> int:
    return sum(p.memory_used_bytes or 0 for p in device.compute_processes or () if p.pid in pids)
