"""Jobs on the GPUs, from the leases and the driver's readings; for decisions, ``status`` and the metrics. Pure.

The processes of one user that share a lease's group are one job, together with all their descendants.

- If a job uses a GPU without a claim, its claim on a GPU that it does not use moves there. If it has no such claim, the
  job counts on the GPU by its use alone.
- A process's idle CUDA context (``Process.is_bare``) does not count as use of an unclaimed GPU.
- A granted part of a GPU counts as a GPU of its own.
"""

from __future__ import annotations

import sys
from typing import Collection, Iterable, Mapping, Sequence

from autogpu.devices.model import Device, Inventory, Process
from autogpu.engines.model import Grant
from autogpu.frozen import Value, replace
from autogpu.lease.model import Demand, Holder, Waiter
from autogpu.selection.model import LEAST_FREE_PART, SETTLED_S, Candidate, Claim, Tier
from autogpu.text import GIB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.lease import Processes

# The driver hides processes in containers and under WSL2. A GPU that was busy for half of the last seconds is not idle,
# even if no process is listed.
_BUSY_UTILIZATION_PERCENT = 50

# If a job's last claim is at least this old and nothing computes on its GPU now, other jobs may share the GPU.
IDLE_LEASE_S = 30 * 60.0


class Job(Value):
    """A job and the GPUs that it holds by the leases of its ``members``.

    Attributes:
        pid: The process that claimed first, or another one that keeps its lease alive. If neither is visible in this
            pid namespace, the pid is a number of the holder's own namespace.
        pids_here: Pids of the job's processes that are visible in this pid namespace.
        age_s: Seconds since the first claim.
        claims: Claims keyed by GPU UUID, each of at most the GPU's memory. A claim has 0 bytes if the GPU can't be
            read, or is used without a claim.
    """

    uid: int
    pid: int | None
    pids_here: tuple[int, ...]
    script: str
    age_s: float
    members: Sequence[Holder]
    claims: Mapping[str, Claim]


def jobs_of(
    holders: Iterable[Holder], processes: Processes, devices: Sequence[Device], now_s: float
) -> tuple[Job, ...]:
    """Return the jobs of all processes but this one, in the order of ``holders``; ``now_s`` is Unix time."""
    # A user can write any group into a lease, so a job has the leases of one user only.
    members_of: dict[tuple[int, str], list[Holder]] = {}
    for holder in holders:
        if not holder.is_mine:
            members_of.setdefault((holder.uid, holder.group or holder.name), []).append(holder)
    if not members_of:
        return ()
    gpus = _Gpus(devices)
    return tuple(_job(members, processes, gpus, now_s) for members in members_of.values())


class _Gpus:
    """The readings that jobs need, collected once because a host may have a thousand jobs."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self.totals = {device.uuid: device.memory_total_bytes or sys.maxsize for device in devices}
        self.listing = {device.uuid for device in devices if device.compute_processes is not None}
        self._used: dict[int | None, dict[str, int]] = {}
        self._on: dict[int | None, set[str]] = {}
        for device in devices:
            bare = bare_pids(device)
            # A card in MIG mode lists the processes on its instances, too: don't count them twice.
            for pid, size in ({} if device.mig_enabled else bytes_by_pid(device)).items():
                self._on.setdefault(pid, set()).add(device.uuid)
                if pid not in bare:
                    self._used.setdefault(pid, {})[device.uuid] = size

    def move_to_used(self, sizes: dict[str, int], pids: Iterable[int]) -> None:
        """Move claims in ``sizes`` from unused GPUs to those that ``pids`` use without a claim, the most used first."""
        used: dict[str, int] = {}
        on: set[str] = set()
        for pid in pids:
            on |= self._on.get(pid, set())
            for uuid, size in self._used.get(pid, {}).items():
                used[uuid] = used.get(uuid, 0) + size
        # A bare context counts as use of a claimed GPU: a small model looks like one while its job pauses.
        unused = [uuid for uuid in sizes if uuid not in on and uuid in self.listing]
        for uuid in sorted((uuid for uuid in used if uuid not in sizes), key=lambda uuid: -used[uuid]):
            sizes[uuid] = min(sizes.pop(unused.pop(0)), self.totals[uuid]) if unused else 0


def _job(members: Sequence[Holder], processes: Processes, gpus: _Gpus, now_s: float) -> Job:
    # Compute each age once: a host may have a thousand jobs, and other processes wait for the mutex.
    ages = [_age_s(member, now_s) for member in members]
    first = members[ages.index(max(ages))]
    newest_s = min(ages)
    pids = tuple(dict.fromkeys(pid for member in members for pid in processes.of(member)))
    caps = {uuid: cap.bytes for member in members for uuid, cap in member.caps.items()}
    sizes: dict[str, int] = {}
    ages_s: dict[str, float] = {}
    for member, age_s in zip(members, ages):
        for uuid, size in member.claims.items():
            sizes[uuid] = max(min(size, gpus.totals.get(uuid, 0)), sizes.get(uuid, 0))
            ages_s[uuid] = max(age_s, ages_s.get(uuid, 0.0))
    gpus.move_to_used(sizes, pids)
    return Job(
        uid=first.uid,
        pid=next(iter(processes.of(first)), first.pid),
        pids_here=pids,
        script=first.script,
        age_s=max(ages),
        members=members,
        claims={
            uuid: Claim(
                bytes=size,
                pids=pids,
                uid=first.uid,
                script=first.script,
                age_s=ages_s.get(uuid, newest_s),
                newest_s=newest_s,
                cap_bytes=caps.get(uuid, 0),
                engine_job=first.engine_job,
            )
            for uuid, size in sizes.items()
        },
    )


def _age_s(holder: Holder, now_s: float) -> float:
    age_s = now_s - holder.since_s
    # If a clock was set back or the file's time was changed, the lease can be from the future. Take the job as settled,
    # so that its use of the GPU counts.
    return max(age_s, 0.0) if age_s > -SETTLED_S else SETTLED_S


def claims_by_gpu(jobs: Iterable[Job]) -> Mapping[str, tuple[Claim, ...]]:
    found: dict[str, list[Claim]] = {}
    for job in jobs:
        for uuid, claim in job.claims.items():
            found.setdefault(uuid, []).append(claim)
    return {uuid: tuple(claims) for uuid, claims in found.items()}


def gpus_of_user(claims_on: Mapping[str, Sequence[Claim]], uid: int) -> frozenset[str]:
    return frozenset(uuid for uuid, claims in claims_on.items() if any(claim.uid == uid for claim in claims))


def awaited(
    candidates: Iterable[Candidate], waiters: Iterable[Waiter], claims_on: Mapping[str, Sequence[Claim]]
) -> frozenset[str]:
    """Return the UUIDs of the candidates that another process in the queue could use now, within its user's limit."""
    others = [
        (waiter.demand, gpus_of_user(claims_on, waiter.uid) if waiter.demand.per_user else frozenset())
        for waiter in waiters
        if not waiter.is_mine
    ]
    return frozenset(each.device.uuid for each in candidates if any(_could_have(*other, each) for other in others))


def _could_have(demand: Demand, held: Collection[str], candidate: Candidate) -> bool:
    uuid = candidate.device.uuid
    is_at_cap = 0 < demand.per_user <= len(held) and uuid not in held
    if is_at_cap:
        return False
    has_room = candidate.free_bytes is None or candidate.free_bytes >= demand.last_runs.get(uuid, 0)
    joins = demand.joins and has_room and candidate.is_joinable
    is_open = candidate.tier is Tier.FREE or (candidate.tier is Tier.IDLE_LEASE and has_room)
    if not (is_open or joins or demand.bytes_per_gpu is not None):
        return False
    return demand.could_use(uuid, candidate.usable_bytes(may_join=joins))


# A GPU with the jobs and the other processes that are on it


def tier(device: Device, own_pid: int | None = None, claims: Sequence[Claim] = ()) -> Tier:
    """Return the GPU's class; a GPU with only a desktop's memory and bare contexts is free."""
    if unmanaged_processes(device, claims, own_pid):
        return Tier.BUSY
    if claims:
        return Tier.IDLE_LEASE if _is_idle(device, claims) else Tier.BUSY
    is_computing = (device.utilization_percent or 0) >= _BUSY_UTILIZATION_PERCENT
    return Tier.BUSY if is_computing or _foreign_bytes(device, own_pid) > _desktop_bytes(device) else Tier.FREE


def _foreign_bytes(device: Device, own_pid: int | None) -> int:
    """Return the used memory, without this process's and that of bare contexts; 0 if it is unknown."""
    used_by = dict(bytes_by_pid(device))
    total = device.memory_total_bytes or 0
    used = (device.memory_used_bytes or 0) - used_by.pop(own_pid, 0)
    # If so much memory is used that no job could join, count the bare contexts as well.
    is_joinable = used <= total * (1 - LEAST_FREE_PART)
    return used - sum(used_by[pid] for pid in used_by.keys() & bare_pids(device)) if is_joinable else used


def _desktop_bytes(device: Device) -> float:
    # A desktop, a browser and the driver itself hold some memory on a GPU on which nothing computes.
    return max(GIB, (device.memory_total_bytes or 0) * 0.05)


def _is_idle(device: Device, claims: Sequence[Claim]) -> bool:
    if any(claim.newest_s < IDLE_LEASE_S for claim in claims):
        return False
    if device.parent is None:
        return device.utilization_percent == 0
    # The driver reports no utilization for a MIG instance.
    return device.compute_processes == () and (device.memory_used_bytes or 0) <= _desktop_bytes(device)


def spare_bytes(device: Device, own_pid: int | None = None, claims: Sequence[Claim] = ()) -> int | None:
    """Return the memory that is neither used nor claimed; ``None`` if the driver does not report it.

    Each job counts with its claim or its use, whichever is larger. If its use is unknown, its claim counts in addition
    to all used memory. The claims of an idle lease don't count.
    """
    total = device.memory_total_bytes
    used = device.memory_used_bytes
    if total is None or used is None:
        return None
    # Compute this once for all claims: there may be a thousand, and other processes wait for the mutex.
    used_by = bytes_by_pid(device)
    claimed = 0
    used -= used_by.get(own_pid, 0)
    if claims and tier(device, own_pid, claims) is Tier.IDLE_LEASE:
        return total - used
    for claim in claims:
        uses = sum(used_by.get(pid, 0) for pid in set(claim.pids))
        used -= uses
        claimed += max(claim.held_bytes, uses)
    return total - max(used, 0) - claimed


def free_bytes(device: Device, own_pid: int | None, claims: Sequence[Claim]) -> int | None:
    """Return the memory that is neither used nor reserved; ``None`` if it is unknown.

    The claim of a stated need stays reserved. A claim of the whole GPU, by a job without a stated need, counts only
    until the driver shows the job's use; see :meth:`Claim.is_shown_on`.
    """
    total = device.memory_total_bytes or 0
    return spare_bytes(device, own_pid, [c for c in claims if c.bytes < total or not c.is_shown_on(device)])


def unmanaged_processes(
    device: Device, claims: Sequence[Claim] = (), own_pid: int | None = None
) -> tuple[Process, ...]:
    """Return the processes that compute on the GPU, without this process, jobs' processes and bare contexts."""
    known = {own_pid, *(pid for claim in claims for pid in claim.pids)}
    return tuple(p for p in device.compute_processes or () if not p.is_bare and p.pid not in known)


def own_memory_bytes(devices: Iterable[Device], uuids: Sequence[str], pid: int | None) -> Mapping[int, int]:
    """Return the bytes that process ``pid`` uses, keyed by CUDA ordinal; in a container NVML reports none."""
    used = {device.uuid: bytes_by_pid(device).get(pid, 0) for device in devices}
    return {ordinal: used[uuid] for ordinal, uuid in enumerate(uuids) if used.get(uuid)}


def bare_pids(device: Device) -> set[int]:
    return {process.pid for process in device.compute_processes or () if process.is_bare}


def compute_pids(devices: Iterable[Device]) -> set[int]:
    return {process.pid for device in devices for process in device.compute_processes or ()}


def bytes_by_pid(device: Device) -> Mapping[int | None, int]:
    """Return the memory of each process that computes on the GPU, 0 if unknown; ``None`` is never a key."""
    used: dict[int | None, int] = {}
    for process in device.compute_processes or ():
        used[process.pid] = used.get(process.pid, 0) + (process.memory_used_bytes or 0)
    return used


# A granted part of a GPU counts as a GPU of its own, which only the processes with that grant use


def claims_in_part(grant: Grant, claims_on: Mapping[str, Sequence[Claim]]) -> Mapping[str, Sequence[Claim]]:
    return {
        uuid: [claim for claim in claims if claim.engine_job == grant.job and grant.job]
        for uuid, claims in claims_on.items()
    }


def parts_of(
    inventory: Inventory, fraction: float, claims_on: Mapping[str, Sequence[Claim]], own_pid: int | None
) -> Inventory:
    """Return the readings of the granted parts; ``claims_on`` is a result of :func:`claims_in_part`."""
    pids_on = {uuid: {pid for claim in claims for pid in claim.pids} for uuid, claims in claims_on.items()}
    devices = [part_of(device, fraction, {own_pid, *pids_on.get(device.uuid, ())}) for device in inventory.devices]
    return replace(inventory, devices=tuple(devices))


def part_of(device: Device, fraction: float, pids: Collection[int | None]) -> Device:
    if device.memory_total_bytes is None:
        return device
    processes = [each for each in device.compute_processes or () if each.pid in pids]
    return replace(
        device,
        memory_total_bytes=int(device.memory_total_bytes * fraction),
        memory_used_bytes=sum(each.memory_used_bytes or 0 for each in processes),
        # The driver reports one utilization for the whole GPU.
        utilization_percent=device.utilization_percent if processes else 0,
        compute_processes=None if device.compute_processes is None else tuple(processes),
        graphics_processes=(),
    )
