"""Which GPU is best for a job, and why not the others. Pure: values in, values out."""

from __future__ import annotations

import enum
from fnmatch import fnmatchcase

from autogpu.devices.model import Device, Process
from autogpu.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Mapping, Sequence

GIB = 1 << 30

# A desktop, a browser and the driver itself hold some memory on a GPU that nobody computes on.
_DESKTOP_BYTES = GIB
_DESKTOP_SHARE = 0.05

# Processes are hidden in containers and under WSL2; a GPU that worked half of the last seconds is not idle even so.
_BUSY_UTILIZATION_PERCENT = 50

# A notebook that nobody has run a cell in for this long may have a guest.
FORGOTTEN_S = 30 * 60.0


class Tier(enum.IntEnum):
    """How good a GPU's situation is, best first. No amount of memory lifts a GPU into a better tier."""

    FREE = 0
    FORGOTTEN = 1
    BUSY = 2


@frozen
class Claim:
    """What one job, of one process or several, was promised on one GPU by its live leases.

    Attributes:
        bytes: 0 for a guest, to whom nothing is promised.
        pids: Those of its processes that can be told here; none of another container's.
        age_s: Since the claim was made.
    """

    bytes: int
    pids: tuple[int, ...]
    uid: int
    script: str
    age_s: float


@frozen
class Size:
    """How much of a GPU a job claims; with neither number, all of it.

    Attributes:
        bytes: As such.
        percent: Of the GPU's memory.
        context_bytes: On top of either, for what the CUDA context takes beside a limit that does not cover it.
        is_limit: The job goes on with less, so that a smaller GPU will do as well.
    """

    bytes: int | None = None
    percent: float | None = None
    context_bytes: int = 0
    is_limit: bool = False

    @property
    def is_whole(self) -> bool:
        """Nothing is known about the job, so nobody else may count on the rest."""
        return self.bytes is None and self.percent is None

    def on(self, device: Device) -> int:
        """In bytes, of a limit never more than the GPU has; 1 where its memory is unknown and all of it is meant."""
        total = device.memory_total_bytes
        if self.bytes is not None:
            wanted = self.bytes + self.context_bytes
        elif self.percent is not None and total is not None:
            wanted = int(total * self.percent / 100) + self.context_bytes
        else:
            wanted = total or 1
        return min(wanted, total) if self.is_limit and total is not None else wanted


@frozen
class SelectionRules:
    """What a policy says about choosing.

    Attributes:
        devices: Choose only among these: index, range ``0-3``, UUID prefix or name pattern; empty means all.
        exclude: Never these.
        size: How much of each GPU the job claims.
        own_pid: This process; what it holds already does not make a GPU busy for it. ``None`` if it is unknown.
    """

    devices: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    size: Size = Size()
    own_pid: int | None = None


@frozen
class Candidate:
    """A GPU that may be taken, and the readings that put it where it stands.

    Attributes:
        claims: The live leases on it.
        claim_bytes: What the job would be promised on it; 0 as a guest.
        room_bytes: What would be left after the claim, or is free now for a job that claims all or nothing.
        is_guest: The job would be placed beside others and is promised nothing.
    """

    device: Device
    tier: Tier
    why: str
    claims: tuple[Claim, ...] = ()
    claim_bytes: int = 0
    room_bytes: int | None = None
    is_guest: bool = False


class Cause(enum.Enum):
    """What stands against a GPU."""

    POLICY = "the policy leaves it out"
    DEVICE = "it will not do for this job, whoever else is on it"
    USE = "others are on it now"


@frozen
class Rejection:
    """A GPU that may not be taken, with the reason in words."""

    device: Device
    why: str
    cause: Cause


@frozen
class Ranking:
    """Every GPU once: among ``candidates``, in the order to try them, or in ``rejected``."""

    candidates: tuple[Candidate, ...] = ()
    rejected: tuple[Rejection, ...] = ()


def rank(
    devices: Iterable[Device], rules: SelectionRules, leases: Mapping[str, Sequence[Claim]] | None = None
) -> Ranking:
    """Order the GPUs that the rules allow, best first; every other one comes with the reason why not.

    Args:
        devices: The pool, freshly read.
        rules: What the policy says.
        leases: By UUID, the live leases of others; a lease counts also before its holder has allocated anything.
    """
    candidates = []
    rejected = []
    for device in devices:
        claims = tuple((leases or {}).get(device.uuid, ()))
        rejection = why_not(device, rules, claims)
        if rejection:
            rejected.append(rejection)
        else:
            candidates.append(_candidate(device, rules, claims))
    candidates.sort(key=_standing)
    return Ranking(tuple(candidates), tuple(rejected))


def _candidate(device: Device, rules: SelectionRules, claims: Sequence[Claim]) -> Candidate:
    at = tier(device, rules.own_pid, claims)
    is_guest = rules.size.is_whole and at is not Tier.FREE
    room = room_bytes(device, rules.own_pid, claims)
    return Candidate(
        device,
        at,
        describe(device, rules.own_pid, claims),
        claims=tuple(claims),
        claim_bytes=0 if is_guest else rules.size.on(device),
        room_bytes=device.memory_free_bytes if rules.size.is_whole or room is None else room - rules.size.on(device),
        is_guest=is_guest,
    )


def why_not(device: Device, rules: SelectionRules, claims: Sequence[Claim] = ()) -> Rejection | None:
    """The first reason against ``device``, or ``None``."""
    if rules.devices and not matches(device, rules.devices):
        return Rejection(device, "not among select.devices", Cause.POLICY)
    if matches(device, rules.exclude):
        return Rejection(device, "excluded by select.exclude", Cause.POLICY)
    if device.mig_enabled:
        return Rejection(device, "split into MIG instances", Cause.DEVICE)
    if device.compute_mode == "prohibited":
        return Rejection(device, "its compute mode is PROHIBITED", Cause.DEVICE)
    if device.compute_mode in ("exclusive_process", "exclusive_thread") and (claims or _others(device, rules.own_pid)):
        return Rejection(device, "its compute mode is EXCLUSIVE and a process has it", Cause.USE)
    return None if rules.size.is_whole else _too_full(device, rules, claims)


def _too_full(device: Device, rules: SelectionRules, claims: Sequence[Claim]) -> Rejection | None:
    wanted, total = rules.size.on(device), device.memory_total_bytes
    room = room_bytes(device, rules.own_pid, claims)
    if room is None or total is None or wanted <= room:
        return None
    if rules.size.is_limit and tier(device, rules.own_pid, claims) is Tier.FREE:
        return None  # what a desktop or the driver keeps does not send a job to the CPU that goes on with less
    if wanted > total:
        return Rejection(device, f"{_gib(wanted)} do not fit, it has {_gib(total)}", Cause.DEVICE)
    why = f"{_gib(wanted)} do not fit, {_gib(max(room, 0))} are neither used nor claimed"
    return Rejection(device, why, Cause.USE)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.1f} GiB"


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


def tier(device: Device, own_pid: int | None = None, claims: Sequence[Claim] = ()) -> Tier:
    """Free: nobody computes on it or has claimed it. A desktop's share of the memory does not count."""
    if claims:
        return Tier.FORGOTTEN if _is_forgotten(device, own_pid, claims) else Tier.BUSY
    if _others(device, own_pid) or (device.utilization_percent or 0) >= _BUSY_UTILIZATION_PERCENT:
        return Tier.BUSY
    if device.memory_total_bytes is not None and device.memory_used_bytes is not None:
        desktop_bytes = max(_DESKTOP_BYTES, device.memory_total_bytes * _DESKTOP_SHARE)
        if device.memory_used_bytes - _own_bytes(device, own_pid) > desktop_bytes:
            return Tier.BUSY
    return Tier.FREE


def _is_forgotten(device: Device, own_pid: int | None, claims: Sequence[Claim]) -> bool:
    holders = {pid for claim in claims for pid in claim.pids}
    return (
        device.utilization_percent == 0
        and all(claim.age_s >= FORGOTTEN_S for claim in claims)
        and all(process.pid in holders for process in _others(device, own_pid))
    )


def room_bytes(device: Device, own_pid: int | None = None, claims: Sequence[Claim] = ()) -> int | None:
    """What is neither used nor promised; ``None`` where the driver does not tell the memory.

    A holder counts with its claim or with what it uses, whichever is more; all other use is somebody's who makes no
    claims. Where a holder's own use can't be told apart it counts twice: that errs on the side of an empty GPU.
    """
    total, used = device.memory_total_bytes, device.memory_used_bytes
    if total is None or used is None:
        return None
    by_pid = {process.pid: process.memory_used_bytes or 0 for process in device.compute_processes or ()}
    used -= by_pid.get(own_pid, 0) if own_pid is not None else 0
    if claims and _is_forgotten(device, own_pid, claims):
        return total - used
    promised = 0
    for claim in claims:
        uses = sum(by_pid.get(pid, 0) for pid in claim.pids)
        used -= uses
        promised += max(claim.bytes, uses)
    return total - max(used, 0) - promised


def _standing(candidate: Candidate) -> tuple[int, bool, int, int, int]:
    device = candidate.device
    room, utilization = candidate.room_bytes, device.utilization_percent
    return (
        candidate.tier,
        # An unreadable GPU ranks last in its tier: guessing "idle" would put two jobs on one GPU.
        room is None or utilization is None,
        # Whole GiB: a few MiB that a driver keeps must not outweigh what a GPU is doing.
        -((room or 0) // GIB),
        100 if utilization is None else utilization,
        # People and desktops sit on GPU 0.
        -device.index,
    )


def describe(device: Device, own_pid: int | None = None, claims: Sequence[Claim] = ()) -> str:
    """The readings that decide, in words: ``pid 4242 computes on it, 93 % busy, 8.5 of 11.0 GiB free``."""
    parts = []
    if claims:
        named = [f"{claim.script or 'a job'}" + "".join(f" (pid {pid})" for pid in claim.pids[:1]) for claim in claims]
        parts.append("claimed by " + _and_more(named))
    holders = {pid for claim in claims for pid in claim.pids}
    others = [process for process in _others(device, own_pid) if process.pid not in holders]
    if others:
        shown = _and_more([str(process.pid) for process in others])
        parts.append(f"pid {shown} computes on it" if len(others) == 1 else f"pids {shown} compute on it")
    if device.utilization_percent is None:
        parts.append("utilization unknown")
    else:
        parts.append(f"{device.utilization_percent} % busy")
    parts.append(free_memory(device))
    return ", ".join(parts)


def _and_more(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def names(devices: Sequence[Device]) -> str:
    """``GPU 2``, ``GPU 2 and GPU 3``, ``GPU 2, GPU 3 and GPU 0``."""
    every = [f"GPU {device.index}" for device in devices]
    return " and ".join([", ".join(every[:-1]), every[-1]] if len(every) > 1 else every)


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
