"""The state of a GPU: free, held by an idle lease, or busy; the memory that is left on it. Pure."""

from __future__ import annotations

from typing import Iterable, Mapping, Sequence

from autogpu.devices.model import Device, Process
from autogpu.reporting.text import GIB
from autogpu.selection.model import LEAST_FREE_PART, Claim, Tier

# Processes are hidden in containers and under WSL2; a GPU that worked half of the last seconds is not idle even so.
_BUSY_UTILIZATION_PERCENT = 50

# A notebook in which no cell has run for this long may share its GPU.
IDLE_LEASE_S = 30 * 60.0


def tier(device: Device, own_pid: int | None = None, claims: Sequence[Claim] = ()) -> Tier:
    """Free: no process computes on it and no lease claims it. A desktop's memory and bare contexts do not count."""
    if claims:
        return Tier.IDLE_LEASE if _is_idle(device, own_pid, claims) else Tier.BUSY
    if unmanaged_processes(device, (), own_pid) or (device.utilization_percent or 0) >= _BUSY_UTILIZATION_PERCENT:
        return Tier.BUSY
    if device.memory_used_bytes is None or device.memory_total_bytes is None:
        return Tier.FREE
    used = device.memory_used_bytes - bytes_by_pid(device).get(own_pid, 0)
    # Of so many contexts that nobody could join what is there, each counts.
    if used <= device.memory_total_bytes * (1 - LEAST_FREE_PART):
        used -= sum(p.memory_used_bytes or 0 for p in device.compute_processes or () if p.is_bare and p.pid != own_pid)
    return Tier.BUSY if used > _desktop_bytes(device) else Tier.FREE


def _desktop_bytes(device: Device) -> float:
    # A desktop, a browser and the driver itself hold some memory on a GPU on which nothing computes.
    return max(GIB, (device.memory_total_bytes or 0) * 0.05)


def _is_idle(device: Device, own_pid: int | None, claims: Sequence[Claim]) -> bool:
    if unmanaged_processes(device, claims, own_pid) or any(claim.newest_s < IDLE_LEASE_S for claim in claims):
        return False
    if device.parent is None:
        return device.utilization_percent == 0
    # Of a MIG instance the driver tells no utilization.
    return device.compute_processes == () and (device.memory_used_bytes or 0) <= _desktop_bytes(device)


def spare_bytes(device: Device, own_pid: int | None = None, claims: Sequence[Claim] = ()) -> int | None:
    """The memory that is neither used nor claimed; ``None`` where the driver does not tell it.

    A holder counts with its claim or with what it uses, whichever is more; with both where its use can't be told apart.
    """
    total, used = device.memory_total_bytes, device.memory_used_bytes
    if total is None or used is None:
        return None
    # Once for all claims: others wait for the mutex meanwhile, and there may be a thousand.
    used_by, claimed = bytes_by_pid(device), 0
    used -= used_by.get(own_pid, 0)
    if claims and _is_idle(device, own_pid, claims):
        return total - used
    for claim in claims:
        uses = sum(used_by.get(pid, 0) for pid in set(claim.pids))
        used -= uses
        claimed += max(claim.held_bytes, uses)
    return total - max(used, 0) - claimed


def free_bytes(device: Device, own_pid: int | None, claims: Sequence[Claim]) -> int | None:
    """The memory that is not used, nor left to a job for what it has stated; ``None`` where it is unknown.

    To a job that has not stated it, all that it was told is left until it shows what it takes.
    """
    total = device.memory_total_bytes or 0
    return spare_bytes(device, own_pid, [c for c in claims if c.bytes < total or not c.is_shown_on(device)])


def unmanaged_processes(
    device: Device, claims: Sequence[Claim] = (), own_pid: int | None = None
) -> tuple[Process, ...]:
    """Those that compute on the GPU, apart from this one and the processes of jobs."""
    known = {own_pid, *(pid for claim in claims for pid in claim.pids)}
    return tuple(p for p in device.compute_processes or () if not p.is_bare and p.pid not in known)


def compute_pids(devices: Iterable[Device]) -> set[int]:
    return {process.pid for device in devices for process in device.compute_processes or ()}


def bytes_by_pid(device: Device) -> Mapping[int | None, int]:
    """The memory of each process that computes on the GPU, 0 where the driver tells none; none has the pid ``None``."""
    used: dict[int | None, int] = {}
    for process in device.compute_processes or ():
        used[process.pid] = used.get(process.pid, 0) + (process.memory_used_bytes or 0)
    return used
