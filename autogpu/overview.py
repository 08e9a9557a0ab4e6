"""Who has which GPU at this moment, who waits, and what a job started here would get. Nothing is claimed.

Pure: values in, values out. ``autogpu.cli`` reads the driver and the lease folder and shows this.
"""

from __future__ import annotations

from autogpu import decision, pool
from autogpu.claiming import awaited_by, leases_of
from autogpu.decision import Decision, Question, Verdict
from autogpu.frozen import frozen
from autogpu.selection import FORGOTTEN_S, Claim, Tier, tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Iterable, Mapping, Sequence

    from autogpu.devices.model import Device, Inventory, Process
    from autogpu.lease import Holder, Waiter
    from autogpu.policy import Policy
    from autogpu.ranks import LocalRank

_DRIVERS_OWN_BYTES = 1 << 30

# Of the JSON form; grows when a field changes its meaning or goes, not when one is added.
VERSION = 1


@frozen
class Job:
    """A job that holds a GPU by a lease, of one process or several.

    Attributes:
        pid: Of the process that claimed first, as its own pid namespace counts it.
        age_s: Since the claim; ``None`` where the lease can't be read.
        processes: How many of its processes have a lease.
        claim_bytes: What it was promised on this GPU; 0 for a guest.
        used_bytes: What its processes use there by the driver's word; ``None`` where they can't be told from others.
        is_forgotten: Held for half an hour or more, and nothing computes.
    """

    uid: int
    pid: int | None
    script: str
    age_s: float | None
    processes: int
    claim_bytes: int
    used_bytes: int | None
    is_forgotten: bool


@frozen
class Stranger:
    """A process on a GPU that makes no claims."""

    pid: int
    used_bytes: int | None
    is_graphics: bool


@frozen
class Gpu:
    """One GPU and everybody on it.

    Attributes:
        unseen_bytes: Used by processes that the driver does not list, such as those of other containers; 0 where
            nothing can be said.
    """

    device: Device
    tier: Tier
    jobs: tuple[Job, ...]
    strangers: tuple[Stranger, ...]
    unseen_bytes: int


@frozen
class Waiting:
    """A process in the queue; ``bytes_per_gpu`` is ``None`` for one that waits for whole GPUs."""

    uid: int
    pid: int | None
    script: str
    waited_s: float | None
    count: int
    bytes_per_gpu: int | None
    is_passed_over: bool


@frozen
class Overview:
    """The machine at one moment.

    Attributes:
        gpus: In PCI bus order.
        queue: Who is served first comes first.
        decision: What a job that is started here and now would get; its ordinals count ``pool``.
        pool: The UUIDs that such a job could see; ``None`` if only the CUDA driver can tell.
    """

    inventory: Inventory
    gpus: tuple[Gpu, ...]
    queue: tuple[Waiting, ...]
    decision: Decision
    pool: tuple[str, ...] | None


def overview(
    inventory: Inventory,
    holders: Sequence[Holder],
    pids_here: Mapping[str, int | None],
    waiters: Sequence[Waiter],
    policy: Policy,
    environ: Mapping[str, str],
    *,
    own_uid: int,
    now_s: float,
    rank: LocalRank | None = None,
) -> Overview:
    """Put together what was read.

    Args:
        pids_here: By the name of a holder's lease, its pid in this pid namespace.
        environ: Gives ``CUDA_VISIBLE_DEVICES``, which a job inherits.
        own_uid: Whose job would be started.
        now_s: In Unix time.
    """
    leases = leases_of(holders, pids_here, inventory, now_s)
    gpus = tuple(_gpu(device, holders, pids_here, leases.get(device.uuid, ()), now_s) for device in inventory.devices)
    frame = pool.frame(environ, pool.start(environ, environ.get(pool.VISIBLE)), policy.script)
    uuids = pool.members(frame.value, inventory, environ.get(pool.ORDER))
    question = Question(policy, frame, inventory, uuids, len(uuids or ()), None, None, own_uid, rank)
    if uuids == () and policy.count != 0:
        outlook = Decision(Verdict.CPU, "CUDA_VISIBLE_DEVICES hides every GPU" if inventory.devices else "no GPU here")
    else:
        ahead = [waiter for waiter in waiters if not waiter.is_passed_over]
        outlook = decision.decide(question, leases, awaited_by(ahead))
    return Overview(inventory, gpus, tuple(map(_waiting(now_s), waiters)), outlook, uuids)


def _gpu(
    device: Device,
    holders: Iterable[Holder],
    pids: Mapping[str, int | None],
    claims: Sequence[Claim],
    now_s: float,
) -> Gpu:
    state = tier(device, None, claims)
    by_job: dict[tuple[int, str], list[Holder]] = {}
    for holder in holders:
        if device.uuid in holder.claims:
            by_job.setdefault((holder.uid, holder.group or holder.name), []).append(holder)
    known = {pids[holder.name] for members in by_job.values() for holder in members}
    jobs = [_job(device, members, pids, state, now_s) for members in by_job.values()]
    strangers = [
        *_strangers(device.compute_processes, known, is_graphics=False),
        *_strangers(device.graphics_processes, known, is_graphics=True),
    ]
    return Gpu(device, state, tuple(jobs), tuple(strangers), _unseen_bytes(device))


def _unseen_bytes(device: Device) -> int:
    listed = [*(device.compute_processes or ()), *(device.graphics_processes or ())]
    seen = [process.memory_used_bytes for process in listed]
    known = [size for size in seen if size is not None]
    if device.memory_used_bytes is None or len(known) < len(seen):
        return 0
    # The driver keeps some for itself, a few hundred MiB on large GPUs.
    unseen = device.memory_used_bytes - sum(known)
    return unseen if unseen > _DRIVERS_OWN_BYTES else 0


def _job(device: Device, members: list[Holder], pids: Mapping[str, int | None], state: Tier, now_s: float) -> Job:
    first = min(members, key=lambda member: member.since_s or now_s)
    here = {pids[member.name] for member in members} - {None}
    used = [process.memory_used_bytes for process in device.compute_processes or () if process.pid in here]
    known = [size for size in used if size is not None]
    total = device.memory_total_bytes
    claim = max(member.claims[device.uuid] for member in members)
    age_s = None if first.since_s is None else max(0.0, now_s - first.since_s)
    return Job(
        uid=first.uid,
        pid=first.pid,
        script=first.script,
        age_s=age_s,
        processes=len(members),
        claim_bytes=claim if total is None else min(claim, total),
        used_bytes=sum(known) if known or (not used and here) else None,
        is_forgotten=state is Tier.FORGOTTEN and (age_s or 0) >= FORGOTTEN_S,
    )


def _strangers(processes: Iterable[Process] | None, known: set[int | None], *, is_graphics: bool) -> list[Stranger]:
    return [Stranger(p.pid, p.memory_used_bytes, is_graphics) for p in processes or () if p.pid not in known]


def _waiting(now_s: float) -> Callable[[Waiter], Waiting]:
    def waiting(waiter: Waiter) -> Waiting:
        waited_s = None if waiter.since_s is None else max(0.0, now_s - waiter.since_s)
        want = waiter.want
        return Waiting(
            waiter.uid, waiter.pid, waiter.script, waited_s, want.count, want.bytes_per_gpu, waiter.is_passed_over
        )

    return waiting
