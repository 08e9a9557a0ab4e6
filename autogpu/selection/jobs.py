"""What the leases and the queue mean to a process that chooses. Pure.

Holders are gathered to jobs: the processes of one user that share a lease's group share what they claim.
"""

from __future__ import annotations

import sys

from autogpu.frozen import frozen
from autogpu.selection import instances
from autogpu.selection.model import Claim

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Mapping, Sequence

    from autogpu.devices.model import Inventory
    from autogpu.lease import Holder, Waiter
    from autogpu.selection.model import IsAwaited


@frozen
class Job:
    """A job that holds GPUs by leases, of one process or several.

    Attributes:
        pid: Of the process that claimed first, as its own pid namespace counts it.
        pids_here: Those of its processes that can be told in this pid namespace.
        age_s: Since the first claim; ``None`` where no lease tells it.
        newest_s: Since the last claim, after which alone it can be idle; 0 where no lease tells it.
        processes: How many of its processes have a lease.
        claims: Bytes by UUID, none above what the GPU has; 0 on a GPU that can't be read.
        is_unused: None of its processes has made a context so far.
    """

    uid: int
    pid: int | None
    pids_here: tuple[int, ...]
    script: str
    age_s: float | None
    newest_s: float
    processes: int
    claims: Mapping[str, int]
    is_unused: bool = False


def jobs_of(
    holders: Iterable[Holder], pids_here: Mapping[str, int | None], inventory: Inventory | None, now_s: float
) -> tuple[Job, ...]:
    """The jobs of other processes than this one, in the order in which they claimed.

    Args:
        pids_here: By the name of a holder's lease, its pid in this pid namespace.
        inventory: Tells what each GPU has.
        now_s: In Unix time.
    """
    devices = inventory.devices if inventory else ()
    totals = {device.uuid: device.memory_total_bytes or sys.maxsize for device in devices}
    # Earlier versions wrote down what CUDA calls a MIG instance.
    names = instances.uuids_of_cuda(devices)
    # A group is its user's word: it can't join the job of another user.
    members_of: dict[tuple[int, str], list[Holder]] = {}
    for holder in holders:
        if not holder.is_mine:
            members_of.setdefault((holder.uid, holder.group or holder.name), []).append(holder)
    return tuple(_job(members, pids_here, totals, names, now_s) for members in members_of.values())


def _job(
    members: Sequence[Holder],
    pids_here: Mapping[str, int | None],
    totals: Mapping[str, int],
    names: Mapping[str, str],
    now_s: float,
) -> Job:
    first, newest_s, is_unused = members[0], now_s, True
    claims: dict[str, int] = {}
    pids: list[int] = []
    # One loop: a host may have a thousand jobs, and others wait for the mutex meanwhile.
    for member in members:
        age_s = _age_s(member, now_s)
        first = member if age_s > _age_s(first, now_s) else first
        newest_s = min(newest_s, age_s)
        is_unused = is_unused and member.is_unused
        pid = pids_here[member.name]
        if pid is not None:
            pids.append(pid)
        for written, size in member.claims.items():
            uuid = names.get(written, written)
            claims[uuid] = max(min(size, totals.get(uuid, 0)), claims.get(uuid, 0))
    return Job(
        uid=first.uid,
        pid=first.pid,
        pids_here=tuple(pids),
        script=first.script,
        age_s=None if first.since_s is None else _age_s(first, now_s),
        newest_s=newest_s,
        is_unused=is_unused,
        processes=len(members),
        claims=claims,
    )


def _age_s(holder: Holder, now_s: float) -> float:
    return 0.0 if holder.since_s is None else max(0.0, now_s - holder.since_s)


def claims_by_gpu(jobs: Iterable[Job]) -> Mapping[str, tuple[Claim, ...]]:
    """By UUID, what each job was promised there."""
    found: dict[str, list[Claim]] = {}
    for job in jobs:
        for uuid, size in job.claims.items():
            claim = Claim(
                bytes=size,
                pids=job.pids_here,
                uid=job.uid,
                script=job.script,
                age_s=job.newest_s,
                is_unused=job.is_unused,
            )
            found.setdefault(uuid, []).append(claim)
    return {uuid: tuple(claims) for uuid, claims in found.items()}


def gpus_of_user(claims_on: Mapping[str, Sequence[Claim]], uid: int) -> frozenset[str]:
    """The UUIDs of the GPUs that a user's jobs hold."""
    return frozenset(uuid for uuid, claims in claims_on.items() if any(claim.uid == uid for claim in claims))


def is_awaited_by(waiters: Sequence[Waiter], claims_on: Mapping[str, Sequence[Claim]], per_user: int = 0) -> IsAwaited:
    """For :func:`autogpu.selection.decide.decide`: whether one of ``waiters`` could use a GPU now.

    Args:
        claims_on: By UUID, what jobs were promised there.
        per_user: ``limits.per_user``: who holds that many can use no further GPU; 0 for no such limit.
    """
    if per_user:
        waiters = [waiter for waiter in waiters if len(gpus_of_user(claims_on, waiter.uid)) < per_user]

    def is_awaited(uuid: str, is_free: bool, room_bytes: int | None) -> bool:
        return any(
            waiter.demand.could_use(uuid, room_bytes) and (is_free or waiter.demand.bytes_per_gpu is not None)
            for waiter in waiters
        )

    return is_awaited
