"""From a request, the readings and the claims of other jobs to the GPUs that a process takes. Pure.

A request passes these steps: it wants no GPU, or something stands in the way; the script has chosen; a local rank takes
its slice of the pool; else the best of the candidates that the process may take.
"""

from __future__ import annotations

import sys
from types import MappingProxyType

from autogpu.devices.model import by_uuid
from autogpu.frozen import frozen, replace
from autogpu.selection import explain
from autogpu.selection.memory import best_effort_share, memory_demand, within_context
from autogpu.selection.model import Cause, Decision, MemoryDemand, Ranking, Tier, Verdict
from autogpu.selection.occupancy import room_bytes, tier, unclaimed_bytes, unmanaged_processes
from autogpu.selection.ranking import rank, rules_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, Sequence

    from autogpu.devices.model import Device
    from autogpu.selection.grants import LocalRank
    from autogpu.selection.model import Candidate, Claim, IsAwaited, SelectionRequest

_NO_CLAIMS: Mapping[str, tuple[Claim, ...]] = MappingProxyType({})

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
    if request.policy.count == 0 and request.chosen is None:
        return Decision(Verdict.CPU, explain.COUNT_IS_ZERO)
    obstacle = _obstacle(request)
    if obstacle:
        return Decision(Verdict.CANNOT_CHOOSE, obstacle)
    pool = _pool(request, claims_on)
    if request.chosen is not None:
        return _respect_choice(pool, request.chosen)
    if request.local_rank is not None:
        return _take_slice(pool, request.local_rank)
    return _take_best(pool, is_awaited)


def _obstacle(request: SelectionRequest) -> str:
    """Why nothing can be chosen, or ``""``."""
    inventory, uuids = request.inventory, request.uuids
    if inventory is None:
        return explain.NO_READING
    if inventory.failure:
        return inventory.failure
    if uuids is None or len(uuids) != request.gpu_count:
        return explain.NO_UUIDS
    if any(device.mig_enabled for device in inventory.devices):
        return explain.HAS_MIG
    return ""


@frozen
class _Pool:
    """The process's GPUs, by CUDA ordinal and as they rank."""

    request: SelectionRequest
    claims_on: Mapping[str, Sequence[Claim]]
    visible: tuple[Device | None, ...]
    ranking: Ranking

    def is_free(self, device: Device) -> bool:
        return tier(device, self.request.own_pid, self.claims_on.get(device.uuid, ())) is Tier.FREE

    def idle_alternatives(self, devices: Sequence[Device]) -> list[Device]:
        """GPUs of the machine that are free while one of ``devices`` is not."""
        if all(map(self.is_free, devices)) or self.request.inventory is None:
            return []
        uuids = {device.uuid for device in devices}
        return [d for d in self.request.inventory.devices if d.uuid not in uuids and self.is_free(d)]

    def unclaimed(self, device: Device, demand: MemoryDemand) -> int:
        return unclaimed_bytes(device, demand.on(device), self.claims_on.get(device.uuid, ()))


def _pool(request: SelectionRequest, claims_on: Mapping[str, Sequence[Claim]]) -> _Pool:
    known = by_uuid(request.inventory.devices if request.inventory else ())
    visible = tuple(known.get(uuid) for uuid in request.uuids or ())
    rules = rules_for(request.policy, request.visible_spec, request.own_pid)
    ranking = rank([device for device in visible if device], rules, claims_on)
    return _Pool(request, claims_on, visible, ranking)


def _respect_choice(pool: _Pool, chosen: Sequence[int]) -> Decision:
    """The script named its GPUs; they are claimed as far as that breaks no promise."""
    named = [device for device in (pool.visible[ordinal] for ordinal in chosen) if device]
    demand = memory_demand(pool.request.policy)
    return Decision(
        Verdict.NOT_OUR_CHOICE,
        explain.CHOSEN_BY_SCRIPT + explain.idle_alternative(pool.idle_alternatives(named)),
        claims={device.uuid: pool.unclaimed(device, demand) for device in named},
        ranking=pool.ranking,
        visible=pool.visible,
    )


def _take_slice(pool: _Pool, rank: LocalRank) -> Decision:
    """Rank r takes slice r of the pool in its own order, whatever else runs there: ranks never steal and never wait."""
    excluded = {r.device.uuid for r in pool.ranking.rejected if r.cause is Cause.EXCLUDED_BY_POLICY}
    usable = [(o, device) for o, device in enumerate(pool.visible) if device and device.uuid not in excluded]
    if not usable:
        why = explain.none_taken(pool.ranking.candidates, pool.ranking)
        return Decision(Verdict.CPU, why, ranking=pool.ranking, visible=pool.visible)
    policy = pool.request.policy
    positions, sharers = rank.share(len(usable))
    mine = [usable[position] for position in positions]
    mine = mine if policy.count == "all" else mine[: policy.count]
    demand, shares = memory_demand(policy), {}
    if sharers > 1:
        demand = MemoryDemand(percent=100 / sharers) if demand.is_whole else demand
        shares = {ordinal: within_context(_at_most_all(demand, device)) for ordinal, device in mine}
    return Decision(
        Verdict.TAKE,
        explain.slice_taken(rank, sharers),
        ordinals=tuple(ordinal for ordinal, _ in mine),
        claims={device.uuid: pool.unclaimed(device, demand) for _, device in mine},
        shares=shares,
        ranking=pool.ranking,
        visible=pool.visible,
        attainable=len(positions),
    )


def _take_best(pool: _Pool, is_awaited: IsAwaited) -> Decision:
    policy = pool.request.policy
    candidates = [_busy_if_awaited(candidate, pool.request, is_awaited) for candidate in pool.ranking.candidates]
    # What another library has begun on a GPU stays with it, rather than spreading the process over two.
    in_use = {(pool.request.uuids or ())[ordinal] for ordinal in pool.request.in_use}
    candidates.sort(key=lambda c: (c.device.uuid not in in_use, c.tier))
    usable = [candidate for candidate in candidates if _may_take(candidate, pool.request)]
    wanted = len(candidates) if policy.count == "all" else policy.count
    quota = _quota(pool)
    taken = usable[: max(min(wanted, quota), 0)]
    if not taken or (policy.busy == "wait" and len(taken) < _could_have(pool, wanted)):
        return _take_none(pool, candidates, is_at_limit=quota <= 0)
    decision = _take(pool, taken, has_context=bool(in_use))
    if policy.count != "all" and len(taken) < wanted:
        limit = policy.per_user if quota < wanted else None
        decision = replace(decision, why=f"{decision.why}; {explain.shortfall(wanted, limit)}")
    return replace(decision, attainable=min(len(usable), quota))


def _quota(pool: _Pool) -> int:
    """How many more GPUs the user may lease."""
    per_user, uid = pool.request.policy.per_user, pool.request.own_uid
    if not per_user:
        return sys.maxsize
    return per_user - sum(any(claim.uid == uid for claim in claims) for claims in pool.claims_on.values())


def _take(pool: _Pool, taken: Sequence[Candidate], *, has_context: bool) -> Decision:
    spec = pool.request.visible_spec
    why = explain.taken(pool.ranking, taken, spec, has_context)
    if spec.value is not None or has_context:
        why += explain.idle_alternative(pool.idle_alternatives([candidate.device for candidate in taken]))
    best_effort = [candidate for candidate in taken if candidate.is_best_effort]
    if best_effort and pool.request.policy.limit is None:
        why += "; " + explain.BEST_EFFORT
    ordinal = {uuid: position for position, uuid in enumerate(pool.request.uuids or ())}
    shares = {ordinal[c.device.uuid]: best_effort_share(c.device) for c in best_effort}
    return Decision(
        Verdict.TAKE,
        why,
        ordinals=tuple(sorted(ordinal[candidate.device.uuid] for candidate in taken)),
        claims={candidate.device.uuid: candidate.claim_bytes for candidate in taken},
        shares={position: share for position, share in shares.items() if share is not None},
        ranking=pool.ranking,
        visible=pool.visible,
    )


def _take_none(pool: _Pool, candidates: Sequence[Candidate], *, is_at_limit: bool) -> Decision:
    policy, ranking = pool.request.policy, pool.ranking
    verdict = _VERDICTS.get(policy.busy, Verdict.CPU)
    if not candidates and not ranking.may_come_free():
        # Waiting can't help, and a GPU that the policy itself excludes is no error of the machine.
        is_unsuitable = any(rejection.cause is Cause.UNSUITABLE for rejection in ranking.rejected)
        if policy.busy == "wait" or not is_unsuitable:
            verdict = Verdict.CPU
    why = explain.user_at_limit(policy.per_user) if is_at_limit else explain.none_taken(candidates, ranking)
    return Decision(verdict, why, ranking=ranking, visible=pool.visible)


def _could_have(pool: _Pool, wanted: int) -> int:
    """How many GPUs it makes sense to wait for: those that are suitable, and what one user may ever have."""
    busy = sum(rejection.cause is Cause.IN_USE for rejection in pool.ranking.rejected)
    return min(wanted, len(pool.ranking.candidates) + busy, pool.request.policy.per_user or wanted)


def _busy_if_awaited(candidate: Candidate, request: SelectionRequest, is_awaited: IsAwaited) -> Candidate:
    """A GPU that a waiter could have now is as good as taken."""
    device = candidate.device
    room = room_bytes(device, request.own_pid, candidate.claims)
    if not is_awaited(device.uuid, candidate.tier is Tier.FREE, room):
        return candidate
    return replace(candidate, tier=Tier.BUSY, is_best_effort=True, claim_bytes=0, why=explain.AWAITED)


def _may_take(candidate: Candidate, request: SelectionRequest) -> bool:
    if not candidate.is_best_effort or candidate.tier is Tier.IDLE_LEASE:
        return True
    if not memory_demand(request.policy).is_whole:
        return False  # what it needs can't be promised to a best-effort job
    if request.policy.busy == "share-own":
        owners = {claim.uid for claim in candidate.claims}
        return owners == {request.own_uid} and not unmanaged_processes(candidate.device, candidate.claims)
    return request.policy.busy == "share"


def _at_most_all(demand: MemoryDemand, device: Device) -> int:
    wanted, total = demand.on(device), device.memory_total_bytes
    return wanted if total is None else min(wanted, total)
