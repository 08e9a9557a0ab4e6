"""Jobs, of leases and of what the driver shows: for decisions, ``status`` and the metrics alike. Pure.

The processes of one user that share a lease's group are one job, with every process below them. A GPU that it uses
without a claim stands for one that it claims and is not on; beyond that it counts there by what it uses. A bare
context is no use of a GPU without a claim.
"""

from __future__ import annotations

import sys
from typing import Collection, Iterable, Mapping, Sequence

from autogpu.devices.model import Device
from autogpu.frozen import Value
from autogpu.selection.model import SETTLED_S, Candidate, Claim, Tier
from autogpu.selection.occupancy import bytes_by_pid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.lease import Demand, Holder, Processes, Waiter


class Job(Value):
    """A job that holds GPUs by the leases of so many processes.

    Attributes:
        pid: Of the process that claimed first, or keeps its lease alive, as its own pid namespace counts it.
        pids_here: Those of its processes that can be told in this pid namespace.
        age_s: Since the first claim.
        claims: By UUID, of at most what the GPU has; of 0 bytes where it can't be read, or is used without a claim.
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
    """The jobs of other processes than this one, in the order in which they claimed; ``now_s`` is in Unix time."""
    gpus = _Gpus(devices)
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
        self._used: dict[int | None, dict[str, int]] = {}
        self._on: dict[int | None, set[str]] = {}
        for device in devices:
            bare = {process.pid for process in device.compute_processes or () if process.is_bare}
            # A card in MIG mode lists those on its instances as well.
            for pid, size in ({} if device.mig_enabled else bytes_by_pid(device)).items():
                self._on.setdefault(pid, set()).add(device.uuid)
                if pid not in bare:
                    self._used.setdefault(pid, {})[device.uuid] = size

    def move_to_used(self, sizes: dict[str, int], pids: Iterable[int]) -> None:
        """Let GPUs that are used without a claim stand for those claimed and not used, the most used ones first."""
        used: dict[str, int] = {}
        on: set[str] = set()
        for pid in pids:
            on |= self._on.get(pid, set())
            for uuid, size in self._used.get(pid, {}).items():
                used[uuid] = used.get(uuid, 0) + size
        # Of a GPU that it claims, a small model whose job pauses looks like a bare context.
        unused = [uuid for uuid in sizes if uuid not in on and uuid in self.listing]
        for uuid in sorted((uuid for uuid in used if uuid not in sizes), key=lambda uuid: -used[uuid]):
            sizes[uuid] = min(sizes.pop(unused.pop(0)), self.totals[uuid]) if unused else 0


def _job(members: Sequence[Holder], processes: Processes, gpus: _Gpus, now_s: float) -> Job:
    # Once each: a host may have a thousand jobs, and others wait for the mutex meanwhile.
    ages = [_age_s(member, now_s) for member in members]
    first, newest_s = members[ages.index(max(ages))], min(ages)
    pids = tuple(dict.fromkeys(pid for member in members for pid in processes.of(member)))
    caps = {uuid: most for member in members for uuid, most in member.caps.items()}
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
            uuid: Claim(size, pids, first.uid, first.script, ages_s.get(uuid, newest_s), newest_s, caps.get(uuid, 0))
            for uuid, size in sizes.items()
        },
    )


def _age_s(holder: Holder, now_s: float) -> float:
    age_s = now_s - holder.since_s
    # Where a clock was set back, or somebody has set the file's time, it is old enough to be seen by what it does.
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
    """The UUIDs of those that another process which waits could use now, as far as its user may hold them."""
    others = [
        (waiter.demand, gpus_of_user(claims_on, waiter.uid) if waiter.demand.per_user else frozenset())
        for waiter in waiters
        if not waiter.is_mine
    ]
    return frozenset(each.device.uuid for each in candidates if any(_could_have(*other, each) for other in others))


def _could_have(demand: Demand, held: Collection[str], candidate: Candidate) -> bool:
    uuid, joins = candidate.device.uuid, demand.joins and candidate.is_joinable
    is_open = joins or candidate.tier <= Tier.IDLE_LEASE or demand.bytes_per_gpu is not None
    is_at_cap = 0 < demand.per_user <= len(held) and uuid not in held
    return is_open and not is_at_cap and demand.could_use(uuid, candidate.usable_bytes(may_join=joins))
