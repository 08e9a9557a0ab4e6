"""The processes of one job: ranks that choose together, children of one that has a lease, and one yet to start. Pure.

Ranks claim their GPUs together, or none: if each waited for its own, two jobs could each hold what the other waits for.
A process that was started by one that has a lease belongs to that one's job, and shares what it has claimed.
"""

from __future__ import annotations

from typing import Iterable, Mapping, Sequence

from autogpu.caps import Cap, CapCause, lower_cap
from autogpu.devices.model import Inventory
from autogpu.frozen import Value, replace
from autogpu.lease.model import Holder, Waiter
from autogpu.selection.decide import decide
from autogpu.selection.decision import Decision, ParentProcess, Reason, Verdict
from autogpu.selection.grants import with_scripts_list
from autogpu.selection.jobs import claims_by_gpu, compute_pids, jobs_of, part_of
from autogpu.selection.memory import best_effort_caps, merged
from autogpu.selection.model import SelectionRequest, Wanted, WantedBy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.lease import Processes


def job_of_ranks(request: SelectionRequest) -> str:
    """The job whose ranks choose together; ``""`` where the process goes by itself."""
    return request.grant.dividing_job if request.chosen is None else ""


def by_scripts_list(request: SelectionRequest) -> SelectionRequest:
    """With the number of ranks whose script lists the same GPUs, where that is the script's doing."""
    rank = request.grant.rank
    if rank is None or not request.visible_spec.is_scripts or request.uuids is None:
        return request
    return replace(request, grant=replace(request.grant, rank=with_scripts_list(rank, len(request.uuids))))


def request_of_all(request: SelectionRequest) -> SelectionRequest:
    """The request of all ranks that see the same GPUs, of which none has chosen, as if they were one process."""
    rank = request.grant.rank
    processes = 1 if rank is None else rank.at_most(len(request.uuids or ()))
    count = request.wanted.minimum * processes
    return replace(
        request,
        wanted=Wanted(count, count, WantedBy.POLICY),
        wait_s=0.0 if request.joins_at_once else request.wait_s,
        # Ranks are counted in limits.per_user, and not refused: a part of them would be of no use.
        per_user=0,
        grant=replace(request.grant, rank=None),
        processes=processes,
        numbers=(),
    )


def ranks_of(job: str, uid: int, holders: Iterable[Holder]) -> list[Holder]:
    """The leases of a user's ranks of ``job``; none where that is ``""``."""
    return [holder for holder in holders if job and (holder.group, holder.uid) == (job, uid)]


def promised_to(ranks: Iterable[Holder], request: SelectionRequest) -> Mapping[str, int]:
    """By UUID, what the job's ranks hold of the GPUs that this one sees: a launcher may have split its ranks' lists."""
    held = merged((rank.claims for rank in ranks), max)
    return {uuid: size for uuid, size in held.items() if uuid in (request.uuids or ())}


class Family(Value):
    """The job that has started this process, by its leases.

    Attributes:
        parent: Of the nearest process above this one that has one.
        members: Of every process of that job.
        has_parents_list: This process sees the GPUs that the parent left to it, and no explicit choice of others.
    """

    parent: Holder
    members: tuple[Holder, ...]
    has_parents_list: bool

    @property
    def held(self) -> Mapping[str, int]:
        """By UUID, what the job has claimed."""
        return merged((member.claims for member in self.members), max)

    @property
    def caps(self) -> Mapping[str, Cap]:
        """By UUID, the most that each of the job's processes may allocate there."""
        return merged((member.caps for member in self.members), lower_cap)


def family_of(parent: Holder | None, holders: Iterable[Holder], *, has_parents_list: bool) -> Family | None:
    """The job of ``parent``, the lease above this process; ``None`` where there is none."""
    if parent is None:
        return None
    # A group is its user's word: it can't join the job of another user.
    job = (parent.uid, parent.group or None)
    others = [h for h in holders if h.name != parent.name]
    members = (parent, *(holder for holder in others if (holder.uid, holder.group) == job))
    return Family(parent, members, has_parents_list)


def rivals(
    holders: Iterable[Holder], family: Family | None, processes: Processes, inventory: Inventory
) -> list[Holder]:
    """The leases that count for a process which chooses for itself: its own job's where the driver lists it on a GPU.

    A parent's lease without a CUDA context does not block its children: they would wait for it, and it for them.
    """
    members = {member.name for member in family.members} if family else ()
    listed = compute_pids(inventory.devices)
    return [each for each in holders if each.name not in members or not listed.isdisjoint(processes.of(each))]


def decide_as_member(request: SelectionRequest, family: Family, processes: Processes) -> Decision | None:
    """Give a process the GPUs of the job that started it, if it can see them; ``None`` if it chooses for itself.

    Args:
        processes: The processes of the family's leases.
    """
    # Ranks have their own GPUs, also where a process that has one started their launcher.
    job = job_of_ranks(request)
    if (job and family.parent.group == job) or not _is_all_held(request, family):
        return None
    if request.chosen is not None:
        return decide(request)
    if request.grant.dividing_rank is None:
        return _decide_as_child(request, family, processes)
    decision = decide(replace(request, promised=family.held))
    is_taken = decision.verdict is Verdict.TAKE
    return replace(decision, caps=merged((decision.caps, family.caps), lower_cap)) if is_taken else None


def _is_all_held(request: SelectionRequest, family: Family) -> bool:
    """All that this process may use is its job's already, as below ``run --hold``; or it names that of its parent."""
    has_rank = request.grant.rank is not None
    if family.has_parents_list and not has_rank and request.chosen is None:
        # `gpus[0]` in a worker of the same script.
        return not request.numbers or family.parent.claims.keys() >= set(request.named_uuids)
    may_use = request.uuids if has_rank and request.numbers else request.named_uuids
    return bool(may_use) and family.held.keys() >= set(may_use or ())


def _decide_as_child(request: SelectionRequest, family: Family, processes: Processes) -> Decision | None:
    alone = decide(request)
    uuids = request.uuids or ()
    held = family.held
    claims = {uuid: held[uuid] for uuid in uuids if uuid in held}
    ordinals = request.numbers or tuple(map(uuids.index, claims))
    if not alone.is_ours or not ordinals:
        return None
    # A job that is a best-effort one on a GPU is capped there in each of its processes.
    shared = best_effort_caps((device, ()) for device in alone.at(ordinals) if not claims.get(device.uuid))
    return replace(
        alone,
        verdict=Verdict.TAKE,
        reason=Reason.PARENT,
        parent=ParentProcess(family.parent.script, family.parent.pid),
        ordinals=ordinals,
        moved={},
        claims=claims,
        caps=merged((shared, _left_of_parts(request, family, processes), family.caps), lower_cap),
        attainable=0,
        # They count what is shared alike, as ranks do: one may be told by its parent which of them to use.
        of_ranks=tuple(claims),
    )


def _left_of_parts(request: SelectionRequest, family: Family, processes: Processes) -> Mapping[str, Cap]:
    """Return caps on a child's memory, so that its family stays within the granted parts; none for whole GPUs."""
    grant = request.grant
    if grant.fraction is None:
        return {}
    pids = {pid for member in family.members for pid in processes.of(member)}
    parts = [part_of(device, grant.fraction, pids) for device in request.inventory.devices]
    # Other children of the job may use the memory later, so each further child gets a smaller part of the rest.
    left = best_effort_caps(((part, ()) for part in parts), sharers=len(family.members))
    return {uuid: Cap(cap.bytes, CapCause.GRANT, grant.engine) for uuid, cap in left.items()}


def decide_beside(
    request: SelectionRequest,
    holders: Sequence[Holder],
    waiters: Sequence[Waiter],
    processes: Processes,
    now_s: float,
    *,
    family: Family | None,
    job: str = "",
) -> tuple[Decision, Mapping[str, int]]:
    """Decide beside the jobs and the queue of now, for a process that goes by itself or with the ranks of ``job``.

    Also returns what to claim: a rank keeps what all ranks of its job were promised until its own end.
    """
    if family is not None:  # a process below a job's own lease never waits for its parent
        keeps_places = request.keeps_places or family.has_parents_list
        request = replace(request, wait_s=0.0, keeps_places=keeps_places)
    waiters = [waiter.at(now_s) for waiter in waiters]
    ranks = ranks_of(job, request.own_uid, holders)
    others = [each for each in rivals(holders, family, processes, request.inventory) if each not in ranks]
    claims_on = claims_by_gpu(jobs_of(others, processes, request.inventory.devices, now_s))
    promised = promised_to(ranks, request)
    if job and not promised:
        decision = decide(request_of_all(request), claims_on, waiters)
        if decision.verdict not in (Verdict.TAKE, Verdict.CANNOT_CHOOSE):
            return decision, {}
        promised = decision.claims
    decision = decide(replace(request, promised=promised or None), claims_on, waiters)
    # What the first one takes for itself may be a part of what it holds for those with which it shares a GPU.
    return decision, merged((promised, decision.claims), max)
