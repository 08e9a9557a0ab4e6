"""From a request, the readings and the claims of other jobs to the GPUs that a process takes. Pure.

A request passes these steps: it wants no GPU, or something stands in the way; the script has chosen; a local rank takes
its slice of the pool; else the best of the candidates that the process may take.
"""

from __future__ import annotations

from types import MappingProxyType

from autogpu.devices.model import by_uuid
from autogpu.frozen import frozen, replace
from autogpu.selection import explain, instances
from autogpu.selection.connected import best_connected_first, with_first
from autogpu.selection.eligible import (
    best_of,
    best_together,
    in_order,
    may_take,
    most_together,
    user_quota,
    wanted_count,
    why_none,
    within_quota,
)
from autogpu.selection.memory import (
    best_effort_share,
    demand_of,
    granted_bytes,
    memory_demand,
    part_of_gpu,
    within_context,
)
from autogpu.selection.model import Cause, Decision, MemoryDemand, Ranking, Tier, Verdict
from autogpu.selection.occupancy import room_bytes, tier, unclaimed_bytes
from autogpu.selection.positions import place
from autogpu.selection.ranking import rank, rules_for
from autogpu.selection.ranks import WORKERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, Sequence

    from autogpu.devices.model import Device
    from autogpu.selection.model import Candidate, Claim, IsAwaited, SelectionRequest
    from autogpu.selection.ranks import LocalRank

_NO_CLAIMS: Mapping[str, tuple[Claim, ...]] = MappingProxyType({})

# In a lease all of a GPU, where it is unknown how much that is; readers cut it to what it has.
_ALL_BYTES = 1 << 50

# Once no candidate is taken: what the policy's ``busy`` makes of that.
_VERDICTS = {"wait": Verdict.WAIT, "error": Verdict.REFUSE}


def decide(
    request: SelectionRequest,
    claims_on: Mapping[str, Sequence[Claim]] = _NO_CLAIMS,
    is_awaited: IsAwaited = lambda uuid, is_free, room_bytes: False,
) -> Decision:
    """Choose among the GPUs that a process has.

    Args:
        request: What is known.
        claims_on: By UUID, the live claims of other jobs.
        is_awaited: Tells of a GPU whether a waiter ahead of this process could use it now.
    """
    decision = _decided(request, claims_on, is_awaited)
    part = request.grant.fraction
    return decision if part is None else replace(decision, granted=granted_bytes(part, decision.visible))


def _decided(request: SelectionRequest, claims_on: Mapping[str, Sequence[Claim]], is_awaited: IsAwaited) -> Decision:
    none = why_none(request)
    if none:
        return Decision(Verdict.CPU, none)
    obstacle = _obstacle(request)
    if obstacle:
        return Decision(Verdict.CANNOT_CHOOSE, obstacle, claims=_all_that_it_takes(request))
    pool = _pool(request, claims_on)
    if request.chosen is not None and not request.positions:
        return _respect_choice(pool, request.chosen)
    if request.grant.rank is not None and request.grant.rank.sharers != 1:
        return _take_slice(pool, request.grant.rank)
    return _take_best(pool, is_awaited)


def _all_that_it_takes(request: SelectionRequest) -> Mapping[str, int]:
    """Let others see what a framework takes by itself."""
    uuids = request.uuids or ()
    ordinals = range(len(uuids)) if request.chosen is None else request.chosen
    return {uuids[ordinal]: _ALL_BYTES for ordinal in ordinals if ordinal < len(uuids)}


def _obstacle(request: SelectionRequest) -> str:
    """Why nothing can be chosen, or ``""``."""
    inventory, uuids = request.inventory, request.uuids
    if inventory is None:
        return explain.NO_READING
    if inventory.failure:
        return inventory.failure
    if uuids is None or len(uuids) != request.gpu_count:
        return explain.NO_UUIDS
    if inventory.unreadable and uuids and by_uuid(inventory.devices).keys().isdisjoint(uuids):
        return f"{explain.NONE_READABLE} ({explain.unreadable(inventory.unreadable)})"
    return ""


@frozen
class _Pool:
    """The process's GPUs, by CUDA ordinal and as they rank."""

    request: SelectionRequest
    claims_on: Mapping[str, Sequence[Claim]]
    visible: tuple[Device | None, ...]
    ranking: Ranking

    @property
    def demand(self) -> MemoryDemand:
        """What the script's framework may take, by its own word or the policy's."""
        return demand_of(self.request)

    def is_free(self, device: Device) -> bool:
        return tier(device, self.request.own_pid, self.claims_on.get(device.uuid, ())) is Tier.FREE

    def idle_alternatives(self, devices: Sequence[Device]) -> list[Device]:
        """GPUs of the machine that are free while one of ``devices`` is not."""
        if all(map(self.is_free, devices)) or self.request.inventory is None:
            return []
        uuids = {device.uuid for device in devices}
        others = (d for d in self.request.inventory.devices if d.uuid not in uuids and not d.mig_enabled)
        return [device for device in others if self.is_free(device)]

    def is_promised_nothing(self, device: Device) -> bool:
        """Whether the ranks of this job share the GPU with other jobs, as a best-effort one."""
        promised = self.request.promised
        return promised is not None and not promised.get(device.uuid)

    def is_promised_to_others(self, device: Device, demand: MemoryDemand) -> bool:
        """Whether other jobs were promised what a rank would take: it came after them. An engine's word counts more."""
        return not self.request.grant.engine and self.unclaimed(device, demand) < demand.on(device)

    def unclaimed(self, device: Device, demand: MemoryDemand) -> int:
        return unclaimed_bytes(device, demand.on(device), self.claims_on.get(device.uuid, ()))


def _pool(request: SelectionRequest, claims_on: Mapping[str, Sequence[Claim]]) -> _Pool:
    known = by_uuid(request.inventory.devices if request.inventory else ())
    visible = tuple(known.get(uuid) for uuid in request.uuids or ())
    rules = rules_for(request.policy, request.visible_spec, request.own_pid, demand_of(request))
    ranking = rank([device for device in visible if device], rules, claims_on)
    return _Pool(request, claims_on, visible, ranking)


def _respect_choice(pool: _Pool, chosen: Sequence[int]) -> Decision:
    """The script named its GPUs; they are claimed as far as that breaks no promise."""
    visible = pool.visible
    named = [device for device in (visible[ordinal] for ordinal in chosen if ordinal < len(visible)) if device]
    return Decision(
        Verdict.NOT_OUR_CHOICE,
        explain.CHOSEN_BY_SCRIPT + explain.idle_alternative(pool.idle_alternatives(named)),
        claims={device.uuid: pool.unclaimed(device, pool.demand) for device in named},
        ranking=pool.ranking,
        visible=pool.visible,
    )


def _take_slice(pool: _Pool, rank: LocalRank) -> Decision:
    """Rank r takes slice r of what its job has, in the pool's order: ranks never take one another's GPU."""
    usable = _gpus_of_ranks(pool)
    if not usable:
        why = explain.none_taken(pool.ranking.candidates, pool.ranking)
        return Decision(Verdict.CPU, why, ranking=pool.ranking, visible=pool.visible)
    request, ranks = pool.request, rank.at_most(len(usable))
    count = request.policy.count
    positions, sharers = rank.share(len(usable))
    together = instances.of_one_process([usable[position][1] for position in positions])
    mine = [usable[position] for position in positions if usable[position][1] in together]
    mine = mine if count == "all" else mine[:count]
    # A number that the script names is a place among the GPUs of its job.
    mine = [usable[number] for number in request.positions if number < len(usable)] or mine
    firsts = (usable[replace(rank, place=place).share(len(usable))[0][0]][1].uuid for place in range(ranks))
    # Workers of one program may be very different, and are not held to equal parts without us either.
    sharing = 1 if rank.launcher == WORKERS else sharers
    claims, shares, is_best_effort = _memory_of_slice(pool, mine, sharing)
    return Decision(
        Verdict.TAKE,
        explain.slice_taken(rank, sharers, ranks) + explain.granted_part(pool.request.grant),
        ordinals=tuple(ordinal for ordinal, _ in mine),
        moved=dict(zip(request.positions, [ordinal for ordinal, _ in mine])),
        claims=claims,
        shares=shares,
        cap=explain.BEST_EFFORT if is_best_effort else "",
        ranking=pool.ranking,
        visible=pool.visible,
        attainable=len(positions),
        of_ranks=tuple(dict.fromkeys(firsts)),
    )


def _gpus_of_ranks(pool: _Pool) -> list[tuple[int, Device]]:
    """By ordinal, what the ranks divide: what they were promised together, else all that the policy allows."""
    excluded = {r.device.uuid for r in pool.ranking.rejected if r.cause is Cause.EXCLUDED_BY_POLICY}
    promised, rank = pool.request.promised, pool.request.grant.rank
    usable = [
        (ordinal, device)
        for ordinal, device in enumerate(pool.visible)
        if device and device.uuid not in excluded and (promised is None or device.uuid in promised)
    ]
    # Where there is a whole card for each of them, none has to do with an instance.
    whole = [(ordinal, device) for ordinal, device in usable if device.parent is None]
    return whole if promised is None and rank is not None and len(whole) >= rank.at_most(len(usable)) else usable


def _memory_of_slice(
    pool: _Pool, mine: Sequence[tuple[int, Device]], sharers: int
) -> tuple[Mapping[str, int], Mapping[int, int], bool]:
    """What a rank claims of its GPUs, by UUID, and by ordinal what it may take where that is less.

    And whether it is a best-effort job on one of them that has to be capped there.
    """
    demand, part, follows_grant = pool.demand, (pool.request.grant.fraction or 1) / sharers, _follows_grant(pool)
    claims, shares, is_capped = {}, {}, False
    if part < 1:
        demand = part_of_gpu(part) if follows_grant else demand
        shares = {ordinal: within_context(_at_most_all(demand, device)) for ordinal, device in mine}
    for ordinal, device in mine:
        # As the job as a whole is a best-effort one there, so is each of its ranks.
        is_late = follows_grant and pool.is_promised_to_others(device, demand)
        is_best_effort = is_late or pool.is_promised_nothing(device)
        claims[device.uuid] = 0 if is_best_effort else pool.unclaimed(device, demand)
        if is_best_effort and follows_grant:
            is_capped = True
            spare = room_bytes(device, pool.request.own_pid, pool.claims_on.get(device.uuid, ()))
            share = best_effort_share(device, spare)
            if share is not None:
                shares[ordinal] = share // sharers
    return claims, shares, is_capped


def _take_best(pool: _Pool, is_awaited: IsAwaited) -> Decision:
    request = pool.request
    found = [_busy_if_awaited(candidate, request, is_awaited) for candidate in pool.ranking.candidates]
    candidates = in_order(found, request)
    quota = user_quota(request, pool.claims_on)
    allowed = best_together([c for c in candidates if may_take(c, request)], request)
    connected = best_connected_first(allowed, min(wanted_count(request), quota), request, pool.is_free)
    usable = within_quota(connected, request, pool.claims_on)
    taken = best_of(usable, request)
    if not taken and request.positions and request.policy.busy == "share" and quota > 0:
        return _respect_choice(pool, request.positions)
    if not taken or (request.policy.busy == "wait" and len(taken) < _could_have(pool)):
        return _take_none(pool, candidates, len(taken), is_at_limit=quota <= 0)
    is_instance = request.processes == 1 and instances.are_among(candidate.device for candidate in taken)
    shortfall = explain.shortfall(request, len(taken), wanted_count(request), quota, is_instance=is_instance)
    if connected != allowed:
        pool = replace(pool, ranking=with_first(pool.ranking, taken))
    decision = _take(pool, taken)
    return replace(decision, why=decision.why + shortfall, attainable=0 if request.positions else len(usable))


def _take(pool: _Pool, taken: Sequence[Candidate]) -> Decision:
    request, spec = pool.request, pool.request.visible_spec
    ordinal = {uuid: position for position, uuid in enumerate(request.uuids or ())}
    mine = [ordinal[candidate.device.uuid] for candidate in taken]
    moved = place(request.positions, mine) if request.positions else {}
    idle = pool.idle_alternatives([candidate.device for candidate in taken])
    return Decision(
        Verdict.TAKE,
        _why_taken(pool, taken, idle),
        ordinals=tuple(dict.fromkeys(moved.values()) if moved else sorted(mine)),
        moved=moved,
        claims={candidate.device.uuid: candidate.claim_bytes for candidate in taken},
        shares=_shares(pool, taken, ordinal),
        ranking=pool.ranking,
        visible=pool.visible,
        cap=_why_capped(pool, taken),
        remedy=explain.OVERRIDE if idle and spec.source == "script" else "",
    )


def _why_taken(pool: _Pool, taken: Sequence[Candidate], idle: Sequence[Device]) -> str:
    request, has_context = pool.request, bool(pool.request.in_use)
    if request.positions:
        return explain.positions(pool.visible, request.positions, taken)
    why = explain.taken(pool.ranking, taken, request.visible_spec, request.grant, has_context=has_context)
    why += explain.lists_without_effect(request.policy, request.visible_spec, request.grant)
    is_named = request.visible_spec.value is not None or has_context
    if request.grant.engine:
        return why  # there is no other GPU to have
    return why + explain.idle_alternative(idle) if is_named else why


def _why_capped(pool: _Pool, taken: Sequence[Candidate]) -> str:
    is_best_effort = any(candidate.is_best_effort for candidate in taken)
    if is_best_effort and pool.demand.or_best_effort:
        return explain.BEST_EFFORT_BY_SCRIPT if pool.request.script_demand else explain.BEST_EFFORT_OF_PART
    return explain.BEST_EFFORT if is_best_effort and pool.request.policy.limit is None else ""


def _shares(pool: _Pool, taken: Sequence[Candidate], ordinal: Mapping[str, int]) -> Mapping[int, int]:
    shares = {}
    for candidate in taken:
        if candidate.is_best_effort:
            shares[ordinal[candidate.device.uuid]] = best_effort_share(candidate.device, candidate.spare_bytes)
    return {position: share for position, share in shares.items() if share is not None}


def _follows_grant(pool: _Pool) -> bool:
    """Whether neither the script nor the policy says how much memory the process may take."""
    return pool.request.script_demand is None and memory_demand(pool.request.policy).is_whole


def _take_none(pool: _Pool, candidates: Sequence[Candidate], taken: int, *, is_at_limit: bool) -> Decision:
    policy, ranking = pool.request.policy, pool.ranking
    verdict = _VERDICTS.get(policy.busy, Verdict.CPU)
    if not candidates and not ranking.may_come_free():
        # Waiting can't help.
        verdict = Verdict.CPU if policy.busy == "wait" else verdict
    if is_at_limit:
        why = explain.user_at_limit(policy.per_user)
    elif taken:
        why = explain.waiting_for_more(_could_have(pool), taken)
    else:
        why = explain.none_taken(candidates, ranking)
    if verdict is Verdict.WAIT:
        why += explain.waiting_for_fewer(wanted_count(pool.request), _suitable(pool))
    return Decision(verdict, why, ranking=ranking, visible=pool.visible)


def _could_have(pool: _Pool) -> int:
    """How many GPUs it makes sense to wait for: those that are suitable, and what the user may have now."""
    # A user who is at the cap waits for one of the GPUs held.
    quota = max(user_quota(pool.request, pool.claims_on), 1)
    return min(wanted_count(pool.request), _suitable(pool), quota)


def _suitable(pool: _Pool) -> int:
    """How many GPUs one process could have if none were in use."""
    usable = [candidate.device for candidate in pool.ranking.candidates]
    usable += [rejection.device for rejection in pool.ranking.rejected if rejection.cause is Cause.IN_USE]
    return most_together(usable, pool.request)


def _busy_if_awaited(candidate: Candidate, request: SelectionRequest, is_awaited: IsAwaited) -> Candidate:
    """A GPU that a waiter could have now is as good as taken."""
    if not is_awaited(candidate.device.uuid, candidate.tier is Tier.FREE, candidate.spare_bytes):
        return candidate
    return replace(candidate, tier=Tier.BUSY, is_best_effort=True, claim_bytes=0, why=explain.AWAITED)


def _at_most_all(demand: MemoryDemand, device: Device) -> int:
    wanted, total = demand.on(device), device.memory_total_bytes
    return wanted if total is None else min(wanted, total)
