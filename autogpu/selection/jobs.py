"""Jobs, of leases and of what the driver shows: for decisions, ``status`` and the metrics alike. Pure.

The processes of one user that share a lease's group are one job, with every process below them. A GPU that it uses
without a claim stands for one that it claims and does not use; beyond that it counts there by what it uses.
"""

from __future__ import annotations

import sys
from typing import Iterable, Mapping, Sequence

from autogpu.devices.model import Device, Inventory
from autogpu.frozen import frozen
from autogpu.selection.model import SETTLED_S, Candidate, Claim, IsAwaited, Tier
from autogpu.selection.occupancy import bytes_by_pid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.lease import Demand, Holder, Processes, Waiter


@frozen
class Job:
    """A job that holds GPUs by the leases of so many processes.

    Attributes:
        pid: Of the process that claimed first, or keeps its lease alive, as its own pid namespace counts it.
        pids_here: Those of its processes that can be told in this pid namespace.
        age_s: Since the first claim.
        newest_s: Since the last claim, after which alone it can be idle.
        claims: Bytes by UUID, at most what the GPU has; 0 where it can't be read, or is used without a claim.
        caps: By UUID, the most bytes that each of its processes may allocate; no entry where nothing caps them.
        ages_s: By UUID, since the first claim on that GPU; no entry where there is none.
    """

    uid: int
    pid: int | None
    pids_here: tuple[int, ...]
    script: str
    age_s: float
    newest_s: float
    members: Sequence[Holder]
    claims: Mapping[str, int]
    caps: Mapping[str, int]
    ages_s: Mapping[str, float]


def jobs_of(
    holders: Iterable[Holder], processes: Processes, inventory: Inventory | None, now_s: float
) -> tuple[Job, ...]:
    """The jobs of other processes than this one, in the order in which they claimed; ``now_s`` is in Unix time."""
    gpus = _Gpus(inventory.devices if inventory else ())
    # A group is its user's word: it can't join the job of another user.
    members_of: dict[tuple[int, str], list[Holder]] = {}
    for holder in holders:
        if not holder.is_mine:
            members_of.setdefault((holder.uid, holder.group or holder.name), []).append(holder)
    return tuple(_job(members, processes, gpus, now_s) for members in members_of.values())


class _Gpus:
    """The readings that matter to jobs; looked through once, for there may be a thousand jobs."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self.totals = {device.uuid: device.memory_total_bytes or sys.maxsize for device in devices}
        self.listing = {device.uuid for device in devices if device.compute_processes is not None}
        self._used: dict[int, dict[str, int]] = {}
        for device in devices:
            # A card in MIG mode lists those on its instances as well.
            for pid, size in ({} if device.mig_enabled else bytes_by_pid(device)).items():
                self._used.setdefault(pid, {})[device.uuid] = size

    def move_to_used(self, claims: dict[str, int], pids: Iterable[int]) -> None:
        """Let GPUs that are used without a claim stand for those claimed and not used, the most used ones first."""
        used: dict[str, int] = {}
        for pid in pids:
            for uuid, size in self._used.get(pid, {}).items():
                used[uuid] = used.get(uuid, 0) + size
        unused = [uuid for uuid in claims if uuid not in used and uuid in self.listing]
        for uuid in sorted((uuid for uuid in used if uuid not in claims), key=lambda uuid: -used[uuid]):
            claims[uuid] = min(claims.pop(unused.pop(0)), self.totals[uuid]) if unused else 0


def _job(members: Sequence[Holder], processes: Processes, gpus: _Gpus, now_s: float) -> Job:
    first, newest_s = members[0], now_s
    claims: dict[str, int] = {}
    caps: dict[str, int] = {}
    ages_s: dict[str, float] = {}
    pids: list[int] = []
    # One loop: a host may have a thousand jobs, and others wait for the mutex meanwhile.
    for member in members:
        age_s = _age_s(member, now_s)
        first = member if age_s > _age_s(first, now_s) else first
        newest_s = min(newest_s, age_s)
        pids += processes.of(member)
        caps.update(member.caps)
        for uuid, size in member.claims.items():
            claims[uuid] = max(min(size, gpus.totals.get(uuid, 0)), claims.get(uuid, 0))
            ages_s[uuid] = max(age_s, ages_s.get(uuid, 0.0))
    gpus.move_to_used(claims, pids)
    return Job(
        uid=first.uid,
        pid=next(iter(processes.of(first)), first.pid),
        pids_here=tuple(dict.fromkeys(pids)),
        script=first.script,
        age_s=_age_s(first, now_s),
        newest_s=newest_s,
        members=members,
        claims=claims,
        caps=caps,
        ages_s=ages_s,
    )


def _age_s(holder: Holder, now_s: float) -> float:
    age_s = now_s - holder.since_s
    # Where a clock was set back, or somebody has set the file's time, it is old enough to be seen by what it does.
    return max(age_s, 0.0) if age_s > -SETTLED_S else SETTLED_S


def claims_by_gpu(jobs: Iterable[Job]) -> Mapping[str, tuple[Claim, ...]]:
    """By UUID, the claim of each job."""
    found: dict[str, list[Claim]] = {}
    for job in jobs:
        for uuid, size in job.claims.items():
            age_s, cap_bytes = job.ages_s.get(uuid, job.newest_s), job.caps.get(uuid, 0)
            claim = Claim(size, job.pids_here, job.uid, job.script, age_s, job.newest_s, cap_bytes)
            found.setdefault(uuid, []).append(claim)
    return {uuid: tuple(claims) for uuid, claims in found.items()}


def gpus_of_user(claims_on: Mapping[str, Sequence[Claim]], uid: int) -> frozenset[str]:
    """The UUIDs of the GPUs that a user's jobs hold."""
    return frozenset(uuid for uuid, claims in claims_on.items() if any(claim.uid == uid for claim in claims))


def is_awaited_by(waiters: Sequence[Waiter], claims_on: Mapping[str, Sequence[Claim]]) -> IsAwaited:
    """Tell whether another process that waits could use a GPU now, as far as its user may hold it."""
    others = [
        (waiter.demand, gpus_of_user(claims_on, waiter.uid) if waiter.demand.per_user else frozenset())
        for waiter in waiters
        if not waiter.is_mine
    ]

    def is_awaited(candidate: Candidate) -> bool:
        return any(
            _could_have(demand, candidate)
            and (not demand.per_user or len(held) < demand.per_user or candidate.device.uuid in held)
            for demand, held in others
        )

    return is_awaited


def _could_have(demand: Demand, candidate: Candidate) -> bool:
    uuid = candidate.device.uuid
    if demand.joins and candidate.is_joinable:
        return demand.could_use(uuid, candidate.free_bytes)
    is_open = candidate.tier <= Tier.IDLE_LEASE or demand.bytes_per_gpu is not None
    return is_open and demand.could_use(uuid, candidate.spare_bytes)
