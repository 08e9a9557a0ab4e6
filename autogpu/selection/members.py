"""A process that was started by one that has a lease belongs to that one's job, and shares what it holds. Pure."""

from __future__ import annotations

from autogpu.frozen import frozen, replace
from autogpu.selection import explain
from autogpu.selection.decide import decide
from autogpu.selection.memory import best_effort_share
from autogpu.selection.model import Verdict
from autogpu.selection.occupancy import unlisted_bytes
from autogpu.selection.together import job_of_ranks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Mapping, Sequence

    from autogpu.devices.model import Device, Inventory
    from autogpu.lease import Holder, Processes
    from autogpu.selection.model import Decision, SelectionRequest


@frozen
class Family:
    """The job that has started this process, by its leases.

    Attributes:
        parent: Of the nearest process above this one that has one.
        members: Of every process of that job.
        has_parents_list: This process sees the GPUs that the parent left to it, and no explicit choice of others.
        unused: By name, the leases of those that the driver lists on no GPU: they have only asked whether there is one,
            or hold it for the programs that they start.
    """

    parent: Holder
    members: tuple[Holder, ...]
    has_parents_list: bool = True
    unused: frozenset[str] = frozenset()

    @property
    def held(self) -> Mapping[str, int]:
        """By UUID, what the job holds."""
        held: dict[str, int] = {}
        for member in self.members:
            for uuid, size in member.claims.items():
                held[uuid] = max(size, held.get(uuid, 0))
        return held

    @property
    def caps(self) -> Mapping[str, int]:
        """By UUID, the most that each of the job's processes may allocate there."""
        caps: dict[str, int] = {}
        for member in self.members:
            for uuid, most in member.caps.items():
                caps[uuid] = min(most, caps.get(uuid, most))
        return caps

    def is_rival(self, holder: Holder) -> bool:
        """Whether what ``holder`` claims counts for a process that chooses for itself.

        A parent's lease without a CUDA context does not block its children: they would wait for it, and it for them.
        """
        return holder.name not in self.unused


def family_of(
    parent: Holder,
    holders: Iterable[Holder],
    processes: Processes,
    inventory: Inventory | None,
    *,
    has_parents_list: bool,
) -> Family:
    """The job of ``parent`` among the live leases of the host."""
    others = [holder for holder in holders if holder.name != parent.name and _is_of_job(holder, parent)]
    devices = inventory.devices if inventory else ()
    unused = [each.name for each in (parent, *others) if _is_unused(each, processes, devices)]
    return Family(parent, (parent, *others), has_parents_list, frozenset(unused))


def _is_unused(holder: Holder, processes: Processes, devices: Sequence[Device]) -> bool:
    claimed = [device for device in devices if device.uuid in holder.claims]
    # In a container the driver lists the host's pids, or hides every process.
    if not claimed or any(d.compute_processes is None or unlisted_bytes(d) for d in claimed):
        return False
    listed = {process.pid for device in devices for process in device.compute_processes or ()}
    on_claimed = {process.pid for device in claimed for process in device.compute_processes or ()}
    return listed.isdisjoint(processes.of(holder)) and on_claimed.isdisjoint(processes.unknown)


def _is_of_job(holder: Holder, parent: Holder) -> bool:
    is_same_group = holder.group == parent.group != ""
    return holder.uid == parent.uid and (is_same_group or holder.name == parent.name)


def decide_as_member(request: SelectionRequest, family: Family) -> Decision | None:
    """The GPUs of the job that has started this process, if it can see them: a job's children belong to the job.

    ``None`` for one that chooses for itself.
    """
    is_all_held = _is_all_held(request, family.held)
    rank, job = request.grant.rank, job_of_ranks(request)
    if rank is not None and (not is_all_held or (job and family.parent.group == job)):
        # Ranks have their own GPUs, also where a process that has one started their launcher.
        return None
    if request.chosen is not None and not request.positions:
        return decide(request) if is_all_held else None
    if rank is not None and rank.sharers != 1:
        return _decide_as_rank(request, family)
    if not (_is_parents(request, family.parent) if family.has_parents_list and rank is None else is_all_held):
        return None
    return _decide_as_child(request, family)


def _is_all_held(request: SelectionRequest, held: Mapping[str, int]) -> bool:
    """Whether all that this process may use is its job's already, as below ``run --hold``."""
    uuids = request.uuids or ()
    is_any = request.chosen is None or (request.positions and request.grant.rank is not None)
    chosen = range(len(uuids)) if is_any or request.chosen is None else request.chosen
    return len(chosen) > 0 and all(ordinal < len(uuids) and uuids[ordinal] in held for ordinal in chosen)


def _is_parents(request: SelectionRequest, parent: Holder) -> bool:
    """Whether what the script has chosen, if anything, is its parent's: ``gpus[0]`` in a worker of the same script."""
    uuids = request.uuids or ()
    return all(position < len(uuids) and uuids[position] in parent.claims for position in request.positions)


def _decide_as_rank(request: SelectionRequest, family: Family) -> Decision | None:
    """This rank's slice of what is held for all of them."""
    decision = decide(replace(request, promised=family.held))
    if decision.verdict is not Verdict.TAKE:
        return None
    return replace(decision, granted={**decision.granted, **_granted(decision, family)})


def _decide_as_child(request: SelectionRequest, family: Family) -> Decision | None:
    alone, claims = decide(request), family.parent.claims if family.has_parents_list else family.held
    parents = tuple(position for position, uuid in enumerate(request.uuids or ()) if uuid in claims)
    ordinals = request.positions or parents
    if not alone.is_ours or not ordinals:
        return None
    shares = _shares_as_member(alone, ordinals, claims)
    return replace(
        alone,
        verdict=Verdict.TAKE,
        why=explain.inherited(family.parent.script, family.parent.pid),
        ordinals=ordinals,
        moved={},
        claims={uuid: claims[uuid] for uuid in request.uuids or () if uuid in claims},
        shares=shares,
        cap=explain.BEST_EFFORT if shares else "",
        granted=_granted(alone, family),
        attainable=0,
        # They count what is shared alike, as ranks do: one may be told by its parent which of them to use.
        of_ranks=tuple(uuid for uuid in request.uuids or () if uuid in claims),
    )


def _granted(decision: Decision, family: Family) -> Mapping[int, int]:
    caps = family.caps
    return {o: caps[device.uuid] for o, device in enumerate(decision.visible) if device and device.uuid in caps}


def _shares_as_member(decision: Decision, ordinals: Sequence[int], claims: Mapping[str, int]) -> Mapping[int, int]:
    """A job to which nothing is promised on a GPU is capped there in each of its processes."""
    devices = ((o, decision.visible[o]) for o in ordinals)
    shares = {o: best_effort_share(d, None) for o, d in devices if d is not None and not claims.get(d.uuid)}
    return {ordinal: share for ordinal, share in shares.items() if share is not None}
