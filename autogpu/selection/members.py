"""The decisions of processes that share a job: ranks, and children of a process with a lease. Pure functions.

Ranks claim all their GPUs together. If each rank waited for its own GPU, two jobs could each hold GPUs that the other
waits for. A descendant of a process with a lease belongs to that process's job, and shares its claims.
"""

from __future__ import annotations

from typing import Iterable, Mapping, Sequence

from autogpu.caps import Cap, CapCause, lower_cap
from autogpu.devices.model import Inventory
from autogpu.engines.model import with_scripts_list
from autogpu.frozen import Value, replace
from autogpu.lease.model import Holder, Waiter
from autogpu.selection.caps import best_effort_caps, merged
from autogpu.selection.decide import decide
from autogpu.selection.decision import Decision, ParentProcess, Reason, Verdict
from autogpu.selection.jobs import claims_by_gpu, compute_pids, jobs_of, part_of
from autogpu.selection.model import SelectionRequest, Wanted, WantedBy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.lease import Processes


def job_of_ranks(request: SelectionRequest) -> str:
    """Return the job whose ranks choose together; ``""`` if the process chooses for itself."""
    return request.grant.dividing_job if request.chosen is None else ""


def by_scripts_list(request: SelectionRequest) -> SelectionRequest:
    """Return the request with the number of ranks that share its list, if the script set the list itself."""
    rank = request.grant.rank
    if rank is None or not request.visible_spec.is_scripts or request.uuids is None:
        return request
    return replace(request, grant=replace(request.grant, rank=with_scripts_list(rank, len(request.uuids))))


def request_of_all(request: SelectionRequest) -> SelectionRequest:
    """Return one request for all ranks that see the same GPUs, as if they were one process that names no GPU."""
    rank = request.grant.rank
    processes = 1 if rank is None else rank.at_most(len(request.uuids or ()))
    count = request.wanted.minimum * processes
    return replace(
        request,
        wanted=Wanted(count, count, WantedBy.POLICY),
        wait_s=0.0 if request.joins_at_once else request.wait_s,
        # The GPUs of ranks count towards limits.per_user, but no rank is refused, because the job needs all its ranks.
        per_user=0,
        grant=replace(request.grant, rank=None),
        processes=processes,
        numbers=(),
    )


def ranks_of(job: str, uid: int, holders: Iterable[Holder]) -> list[Holder]:
    return [holder for holder in holders if job and (holder.group, holder.uid) == (job, uid)]


def promised_to(ranks: Iterable[Holder], request: SelectionRequest) -> Mapping[str, int]:
    """Return the bytes that the job's ranks hold on this rank's GPUs, keyed by UUID. Other ranks may see other GPUs."""
    held = merged((rank.claims for rank in ranks), max)
    return {uuid: size for uuid, size in held.items() if uuid in (request.uuids or ())}


class Family(Value):
    """The leases of the job that started this process.

    Attributes:
        parent: Lease of the nearest ancestor that holds one.
        members: Leases of all processes of that job, including the parent's.
        has_parents_list: True if this process sees the GPUs that the parent left to it, and did not choose others.
    """

    parent: Holder
    members: tuple[Holder, ...]
    has_parents_list: bool

    @property
    def held(self) -> Mapping[str, int]:
        """Bytes claimed by the job, keyed by GPU UUID."""
        return merged((member.claims for member in self.members), max)

    @property
    def caps(self) -> Mapping[str, Cap]:
        """Caps on each of the job's processes, keyed by GPU UUID."""
        return merged((member.caps for member in self.members), lower_cap)


def family_of(parent: Holder | None, holders: Iterable[Holder], *, has_parents_list: bool) -> Family | None:
    if parent is None:
        return None
    # A user can write any group into a lease, so compare the user as well.
    job = (parent.uid, parent.group or None)
    others = [h for h in holders if h.name != parent.name]
    members = (parent, *(holder for holder in others if (holder.uid, holder.group) == job))
    return Family(parent, members, has_parents_list)


def rivals(
    holders: Iterable[Holder], family: Family | None, processes: Processes, inventory: Inventory
) -> list[Holder]:
    """Return the leases that block this process if it chooses for itself.

    A lease of its own job blocks it only if the driver lists the holder on a GPU. If every lease of the job blocked it,
    a child would wait for its parent, and the parent for the child.
    """
    members = {member.name for member in family.members} if family else ()
    listed = compute_pids(inventory.devices)
    return [each for each in holders if each.name not in members or not listed.isdisjoint(processes.of(each))]


def decide_as_member(request: SelectionRequest, family: Family, processes: Processes) -> Decision | None:
    """Return the decision to use the GPUs of the job that started the process; ``None`` if it chooses for itself."""
    # A rank chooses with the other ranks, even if it was started by a process of its job that holds GPUs.
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
    """True if the job already holds every GPU that this process, such as a child of ``run --hold``, may use."""
    has_rank = request.grant.rank is not None
    if family.has_parents_list and not has_rank and request.chosen is None:
        # With its parent's list, a process may use numbers of the parent's GPUs, such as `gpus[0]` in a worker.
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
    # If the job is a best-effort job on a GPU, cap each of its processes there.
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
        # All children list the shared GPUs in one order, as ranks do, because a parent may pass them GPU numbers.
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
    """Decide with the current leases and queue. Return the decision and the bytes to claim, keyed by GPU UUID.

    A rank claims the GPUs of all ranks of its job, and keeps this claim until it ends. ``now_s`` is Unix time.
    """
    if family is not None:  # a child process never waits for its parent's GPUs
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
    # Ranks can share a GPU, so the job's claim on it may be larger than this rank's part.
    return decision, merged((promised, decision.claims), max)
