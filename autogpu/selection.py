"""Which GPU is best for a job, and why not the others. Pure: values in, values out."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from fnmatch import fnmatchcase

from autogpu.devices.model import Device, Process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Mapping

GIB = 1 << 30

# A desktop, a browser and the driver itself hold some memory on a GPU that nobody computes on.
_DESKTOP_BYTES = GIB
_DESKTOP_SHARE = 0.05

# Processes are hidden in containers and under WSL2; a GPU that worked half of the last seconds is not idle even so.
_BUSY_UTILIZATION_PERCENT = 50


class Tier(enum.IntEnum):
    """How good a GPU's situation is, best first. No amount of memory lifts a GPU into a better tier."""

    FREE = 0
    BUSY = 1


@dataclass(frozen=True)
class SelectionRules:
    """What a policy says about choosing.

    Attributes:
        devices: Choose only among these: index, range ``0-3``, UUID prefix or name pattern; empty means all.
        exclude: Never these.
        own_pid: This process; what it holds already does not make a GPU busy for it. ``None`` if it is unknown.
    """

    devices: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    own_pid: int | None = None


@dataclass(frozen=True)
class Candidate:
    """A GPU that may be taken, and the readings that put it where it stands."""

    device: Device
    tier: Tier
    why: str


@dataclass(frozen=True)
class Rejection:
    """A GPU that may not be taken; ``by_policy`` if the policy says so, else the GPU's own state does."""

    device: Device
    why: str
    by_policy: bool


@dataclass(frozen=True)
class Ranking:
    """Every GPU once: among ``candidates``, in the order to try them, or in ``rejected``."""

    candidates: tuple[Candidate, ...] = ()
    rejected: tuple[Rejection, ...] = ()


def rank(devices: Iterable[Device], rules: SelectionRules) -> Ranking:
    """Order the GPUs that the rules allow, best first; every other one comes with the reason why not."""
    candidates = []
    rejected = []
    for device in devices:
        rejection = why_not(device, rules)
        if rejection:
            rejected.append(rejection)
        else:
            candidates.append(Candidate(device, tier(device, rules.own_pid), describe(device, rules.own_pid)))
    candidates.sort(key=_standing)
    return Ranking(tuple(candidates), tuple(rejected))


def why_not(device: Device, rules: SelectionRules) -> Rejection | None:
    """The first reason against ``device``, or ``None``."""
    if rules.devices and not matches(device, rules.devices):
        return Rejection(device, "not among select.devices", by_policy=True)
    if matches(device, rules.exclude):
        return Rejection(device, "excluded by select.exclude", by_policy=True)
    if device.mig_enabled:
        return Rejection(device, "split into MIG instances", by_policy=False)
    if device.compute_mode == "prohibited":
        return Rejection(device, "its compute mode is PROHIBITED", by_policy=False)
    if device.compute_mode in ("exclusive_process", "exclusive_thread") and _others(device, rules.own_pid):
        return Rejection(device, "its compute mode is EXCLUSIVE and a process has it", by_policy=False)
    return None


def matches(device: Device, entries: Iterable[str]) -> bool:
    """Whether one of ``entries`` (index, range, UUID prefix or name pattern) means this GPU."""
    return any(_matches(device, entry.strip().lower()) for entry in entries)


def _matches(device: Device, entry: str) -> bool:
    first, dash, last = entry.partition("-")
    if first.isdigit() and (not dash or last.isdigit()):
        return int(first) <= device.index <= int(last or first)
    if entry.startswith(("gpu-", "mig-")):
        return device.uuid.lower().startswith(entry)
    return fnmatchcase(device.name.lower(), entry)


def tier(device: Device, own_pid: int | None = None) -> Tier:
    """Free: nobody computes on it. A desktop's share of the memory does not count."""
    if _others(device, own_pid) or (device.utilization_percent or 0) >= _BUSY_UTILIZATION_PERCENT:
        return Tier.BUSY
    if device.memory_total_bytes is not None and device.memory_used_bytes is not None:
        desktop_bytes = max(_DESKTOP_BYTES, device.memory_total_bytes * _DESKTOP_SHARE)
        if device.memory_used_bytes - _own_bytes(device, own_pid) > desktop_bytes:
            return Tier.BUSY
    return Tier.FREE


def _standing(candidate: Candidate) -> tuple[int, bool, int, int, int]:
    device = candidate.device
    free_bytes, utilization = device.memory_free_bytes, device.utilization_percent
    return (
        candidate.tier,
        # An unreadable GPU ranks last in its tier: guessing "idle" would put two jobs on one GPU.
        free_bytes is None or utilization is None,
        # Whole GiB: a few MiB that a driver keeps must not outweigh what a GPU is doing.
        -((free_bytes or 0) // GIB),
        100 if utilization is None else utilization,
        # People and desktops sit on GPU 0.
        -device.index,
    )


def describe(device: Device, own_pid: int | None = None) -> str:
    """The readings that decide, in words: ``pid 4242 computes on it, 93 % busy, 8.5 of 11.0 GiB free``."""
    parts = []
    others = _others(device, own_pid)
    if others:
        shown = ", ".join(str(process.pid) for process in others[:3])
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        parts.append(f"pid {shown}{more} computes on it" if len(others) == 1 else f"pids {shown}{more} compute on it")
    if device.utilization_percent is None:
        parts.append("utilization unknown")
    else:
        parts.append(f"{device.utilization_percent} % busy")
    parts.append(free_memory(device))
    return ", ".join(parts)


def free_memory(device: Device) -> str:
    """``23.7 of 24.0 GiB free``."""
    if device.memory_free_bytes is None or device.memory_total_bytes is None:
        return "memory unknown"
    return f"{device.memory_free_bytes / GIB:.1f} of {device.memory_total_bytes / GIB:.1f} GiB free"


def _others(device: Device, own_pid: int | None) -> tuple[Process, ...]:
    return tuple(process for process in device.compute_processes or () if process.pid != own_pid)


def _own_bytes(device: Device, own_pid: int | None) -> int:
    mine = (p.memory_used_bytes or 0 for p in device.compute_processes or () if p.pid == own_pid)
    return sum(mine)


def by_uuid(devices: Iterable[Device]) -> Mapping[str, Device]:
    """The devices by their only stable name."""
    return {device.uuid: device for device in devices}
