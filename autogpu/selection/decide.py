"""From a request, the readings and the claims of other jobs to the GPUs that a process takes. Pure.

A request passes these steps: it wants no GPU, or something stands in the way; the script has chosen; a local rank takes
its slice of the pool; else the best of the candidates that the process may take.
"""

from __future__ import annotations

import sys
from itertools import chain, cycle
from types import MappingProxyType
from typing import Collection, Mapping, Sequence

from autogpu.devices.enumeration import cards, has_instances
from autogpu.devices.model import Device, by_uuid
from autogpu.frozen import replace
from autogpu.selection import explain, memory
from autogpu.selection.jobs import awaited, gpus_of_user, tier
from autogpu.selection.model import (
    Candidate,
    Cap,
    Claim,
    Decision,
    MemoryDemand,
    SelectionRequest,
    Tier,
    Verdict,
)
from autogpu.selection.ranking import best_connected_first, ranking_of, standing
from autogpu.selection.ranks import WORKERS, LocalRank

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.lease import Waiter

# In a lease all of a GPU, where it is unknown how much that is; readers cut it to what it has.
_ALL_BYTES = 1 << 50


def decide(
    request: SelectionRequest,
    claims_on: Mapping[str, Sequence[Claim]] = MappingProxyType({}),
    waiters: Sequence[Waiter] = (),
) -> Decision:
    """Choose among the GPUs that a process has, beside the live claims of other jobs, which are given by UUID."""
    none = why_none(request)
    if none:
        return Decision(Verdict.CPU, none)
    obstacle = _obstacle(request)
    if obstacle:
        # Let others see what a framework takes by itself.
        return Decision(Verdict.CANNOT_CHOOSE, obstacle, claims=dict.fromkeys(request.named_uuids, _ALL_BYTES))
    pool, rank = _Pool(request, claims_on, waiters), request.grant.dividing_rank
    if request.chosen is not None:
        decision = _respect_choice(pool, request.chosen)
    elif rank is not None:
        decision = _take_slice(pool, rank)
    else:
        decision = _take_best(pool)
    # Those that are taken before others of their standing.
    ranked = sorted(pool.ranking.candidates, key=lambda each: (standing(each), each.device.uuid not in decision.claims))
    return replace(
        decision,
        ranking=replace(pool.ranking, candidates=tuple(ranked)),
        visible=pool.visible,
        caps=memory.merged((decision.caps, memory.granted_bytes(request.grant, pool.visible)), min),
    )


def why_none(request: SelectionRequest) -> str:
    """Why the process takes no GPU, whatever there is; ``""`` where it may take some."""
    grant = request.grant
    is_none = grant.is_none and not request.visible_spec.is_scripts
    if not is_none and request.policy.count == 0:
        return explain.COUNT_IS_ZERO
    needs_none = grant.needs_none and request.named is None and not request.count_is_set
    return f"{grant.why}; {grant.remedy}" if is_none or needs_none else ""


def _obstacle(request: SelectionRequest) -> str:
    """Say why nothing can be chosen; ``""`` if nothing is in the way."""
    inventory, uuids = request.inventory, request.uuids
    if inventory.failure:
        return inventory.failure
    if uuids is None or len(uuids) != request.gpu_count:
        return explain.NO_UUIDS
    if inventory.unreadable and uuids and by_uuid(inventory.devices).keys().isdisjoint(uuids):
        return f"NVML can't read any of the GPUs ({explain.unreadable(inventory.unreadable)})"
    return ""


class _Pool:
    """The process's GPUs, by CUDA ordinal and as they rank, and what it may have of them."""

    def __init__(
        self, request: SelectionRequest, claims_on: Mapping[str, Sequence[Claim]], waiters: Sequence[Waiter]
    ) -> None:
        known = by_uuid(request.inventory.devices)
        devices, policy, spec = [known.get(uuid) for uuid in request.uuids or ()], request.policy, request.visible_spec
        self.request, self.claims_on, self.waiters, self.visible = request, claims_on, waiters, tuple(devices)
        self.demand = memory.demand_of(request)
        self.is_demand_unknown = memory.demand_told(request).is_whole
        self.ranking = ranking_of(filter(None, devices), policy, spec, request.own_pid, self.demand, claims_on)
        suitable = self.ranking.suitable
        together = len(cards(suitable)) or min(len(suitable), request.processes)
        self.suitable_count = len(suitable) if request.takes_one else together
        # The GPUs that the user's jobs hold already, and how many more the user may lease; what was named is counted.
        self.held = gpus_of_user(claims_on, request.own_uid)
        has_cap = policy.per_user and not request.names_cards
        self.quota = policy.per_user - len(self.held) if has_cap else sys.maxsize

    @property
    def waits_for(self) -> int:
        """How many GPUs it makes sense to wait for; a user who is at the cap waits for one of the GPUs held."""
        request = self.request
        waits_for = request.wanted_count if request.policy.busy == "wait" else request.least_count
        return min(waits_for, self.suitable_count, max(self.quota, 1))

    def claims(self, device: Device) -> Sequence[Claim]:
        return self.claims_on.get(device.uuid, ())

    def within_quota(self, allowed: Sequence[Candidate]) -> Sequence[Candidate]:
        if self.quota > 0:
            return allowed[: self.quota]
        # One more job on a GPU that is the user's already takes no further one.
        return [candidate for candidate in allowed if candidate.device.uuid in self.held]

    def unclaimed_bytes(self, device: Device, demand: MemoryDemand) -> int:
        """As much of what the process would claim as no other job has claimed."""
        claimed = sum(claim.bytes for claim in self.claims(device))
        return max(0, min(demand.on(device), (device.memory_total_bytes or 1) - claimed))

    def is_free(self, device: Device) -> bool:
        return tier(device, self.request.own_pid, self.claims(device)) is Tier.FREE

    def idle_alternatives(self, devices: Sequence[Device]) -> list[Device]:
        """GPUs of the machine that are free while one of ``devices`` is not."""
        if all(map(self.is_free, devices)):
            return []
        others = [d for d in self.request.inventory.devices if d not in devices and not (d.mig_enabled or d.is_small)]
        return [device for device in others if self.is_free(device)]


def _respect_choice(pool: _Pool, chosen: Sequence[int]) -> Decision:
    """The script named its GPUs; they are claimed as far as no other job has claimed them."""
    named = [device for device in map(dict(enumerate(pool.visible)).get, chosen) if device]
    return Decision(
        Verdict.NOT_OUR_CHOICE,
        explain.CHOSEN_BY_SCRIPT + explain.idle_alternative(pool.idle_alternatives(named)),
        claims={device.uuid: pool.unclaimed_bytes(device, pool.demand) for device in named},
    )


def _take_slice(pool: _Pool, rank: LocalRank) -> Decision:
    """Rank r takes slice r of what its job has, in the pool's order: ranks never take one another's GPU."""
    request, usable = pool.request, _gpus_of_ranks(pool, rank)
    if not usable:
        return Decision(Verdict.CPU, explain.none_taken(pool.ranking.candidates, pool.ranking))
    numbers, sharers = rank.slice(len(usable))
    # Cards together, but no two instances.
    mine = list(cards(usable[number] for number in numbers)) or [usable[numbers[0]]]
    if request.policy.count != "all":
        mine = mine[: request.policy.count]
    # A number that the script names is a position among the GPUs of its job.
    named = [usable[number] if number < len(usable) else mine[0] for number in request.numbers]
    mine = list(dict.fromkeys(named)) or mine
    ordinals = tuple(map(pool.visible.index, mine))
    # Workers of one program may be very different, and are not held to equal parts without us either.
    claims, caps, why_capped = _memory_of_slice(pool, mine, 1 if rank.launcher == WORKERS else sharers)
    return Decision(
        Verdict.TAKE,
        explain.slice_taken(rank, sharers, rank.at_most(len(usable))) + explain.granted_part(request.grant),
        ordinals=ordinals,
        moved=dict(zip(request.numbers, map(pool.visible.index, named))),
        claims=claims,
        caps=caps,
        why_capped=why_capped,
        attainable=len(numbers),
        of_ranks=tuple(dict.fromkeys(usable[number].uuid for number in rank.firsts(len(usable)))),
    )


def _gpus_of_ranks(pool: _Pool, rank: LocalRank) -> list[Device]:
    """The GPUs that the ranks divide: what they claimed together, else all that the policy allows."""
    usable = [device for device in pool.visible if device in pool.ranking.pool]
    if pool.request.promised is not None:
        promised = pool.request.promised
        held = [device for device in usable if device.uuid in promised]
        # Of several each, the first is one that is the job's alone, as far as there are such ones.
        has_several = len(held) >= 2 * rank.at_most(len(held))
        return sorted(held, key=lambda device: not promised[device.uuid]) if has_several else held
    # Where there is a whole card for each of them, none has to do with an instance.
    whole = list(cards(usable))
    return whole if len(whole) >= rank.at_most(len(usable)) else usable


def _memory_of_slice(
    pool: _Pool, mine: Sequence[Device], sharers: int
) -> tuple[Mapping[str, int], Mapping[str, Cap], str]:
    """By UUID, what a rank claims, and the most that it may allocate; and why that is little, if it is."""
    request, demand = pool.request, memory.demand_of(pool.request, sharers)
    late = [device for device in mine if _is_late(pool, device, demand)]
    claims = {device.uuid: 0 if device in late else pool.unclaimed_bytes(device, demand) for device in mine}
    is_part = sharers > 1 or request.grant.fraction is not None
    caps = memory.caps_of_part(demand, mine) if is_part else {}
    if not pool.is_demand_unknown:
        return claims, caps, ""
    beside = [(device, pool.claims(device)) for device in late]
    caps.update(memory.best_effort_caps(beside, request.own_pid, sharers))
    return claims, caps, explain.BEST_EFFORT if late else ""


def _is_late(pool: _Pool, device: Device, demand: MemoryDemand) -> bool:
    """A rank is a best-effort job where its job as a whole is one, or others claimed a part of the GPU before."""
    request = pool.request
    if request.promised is not None and not request.promised.get(device.uuid):
        return True
    # An engine's word counts more.
    is_first_come = pool.is_demand_unknown and not request.grant.engine
    return is_first_come and pool.unclaimed_bytes(device, demand) < demand.on(device)


def _take_best(pool: _Pool) -> Decision:
    request, wanted, least = pool.request, pool.request.wanted_count, pool.request.least_count
    candidates, kept = _in_order(pool)
    allowed = _takeable(candidates, request)
    allowed = best_connected_first(allowed, min(wanted, pool.quota), request, kept, pool.is_free)
    usable = pool.within_quota(allowed)
    taken = [*usable[:least], *(each for each in usable[least:wanted] if not each.is_best_effort)]
    if len(taken) < pool.waits_for and _waits(request, pool.within_quota(candidates)):
        return _take_none(pool, candidates, len(taken), waits=True)
    if not taken:
        return _take_none(pool, candidates, 0)
    return _take(pool, taken, kept, attainable=0 if request.numbers else len(usable))


def _in_order(pool: _Pool) -> tuple[list[Candidate], frozenset[str]]:
    """Return the candidates in the order to take them, and the UUIDs of those that come first, however idle they are.

    If another library of the process has begun on a GPU, the process continues there, rather than on two. A number that
    the script names stands for a further GPU, unless it is the number of that one.
    """
    request = pool.request
    # A GPU that a waiter could have now is as good as taken.
    theirs = awaited(pool.ranking.candidates, pool.waiters, pool.claims_on)
    as_taken = {"tier": Tier.AWAITED, "is_best_effort": True, "claim_bytes": 0, "why": explain.AWAITED}
    candidates = [replace(c, **as_taken) if c.device.uuid in theirs else c for c in pool.ranking.candidates]
    in_use = request.uuids_in_use
    free = frozenset(candidate.device.uuid for candidate in candidates if candidate.tier is Tier.FREE)
    kept = in_use
    if request.numbers:
        kept = frozenset(request.named_uuids) & (in_use | free if request.keeps_places else in_use)

    def order(candidate: Candidate) -> tuple[bool, Tier, bool]:
        uuid = candidate.device.uuid
        return uuid not in kept, candidate.tier, uuid in in_use

    return sorted(candidates, key=order), kept


def _takeable(candidates: Sequence[Candidate], request: SelectionRequest) -> list[Candidate]:
    """The candidates that the process may take together: whole cards, or one MIG instance a process."""
    allowed = [candidate for candidate in candidates if _may_take(candidate, request)]
    whole = [candidate for candidate in allowed if candidate.device.parent is None]
    if not request.takes_one:
        return whole or allowed[: request.processes]
    if request.processes > 1:
        return allowed
    return whole if whole[:1] == allowed[:1] else allowed[:1]


def _may_take(candidate: Candidate, request: SelectionRequest) -> bool:
    """``select.busy`` allows the process to be placed there."""
    if not candidate.is_best_effort or candidate.tier is Tier.IDLE_LEASE:
        return True
    is_here = candidate.device.uuid in request.uuids_in_use
    may_join = candidate.is_joinable or (request.has_waited and candidate.is_settled)
    return request.policy.busy == "share" and (request.joins_at_once or is_here or may_join)


def gpus_of_numbers(numbers: Sequence[int], taken: Sequence[int], kept: Collection[int] = ()) -> Mapping[int, int]:
    """Return the ordinal of the GPU that each number stands for: the best first, and shared ones if they are too few.

    Args:
        taken: Ordinals, best first.
        kept: The numbers that are the ordinals of their own GPUs.
    """
    others = chain((ordinal for ordinal in taken if ordinal not in kept), cycle(taken))
    return {number: number if number in kept else next(others) for number in numbers}


def _waits(request: SelectionRequest, candidates: Sequence[Candidate]) -> bool:
    """In the end it waits for the minute alone: until then several that have waited would be told the same memory."""
    if request.joins_at_once or request.policy.busy not in ("share", "wait"):
        return False
    return not request.has_waited or not all(candidate.is_settled for candidate in candidates)


def _take(pool: _Pool, taken: Sequence[Candidate], kept: Collection[str], attainable: int) -> Decision:
    request, devices = pool.request, [candidate.device for candidate in taken]
    ordinals = tuple(map(pool.visible.index, devices))
    own = [ordinal for ordinal, device in zip(ordinals, devices) if device.uuid in kept]
    moved = gpus_of_numbers(request.numbers, ordinals, own)
    idle = pool.idle_alternatives(devices)
    beside = [(candidate.device, candidate.claims) for candidate in taken if candidate.is_best_effort]
    sharers = -(-request.processes // len(taken))
    return Decision(
        Verdict.TAKE,
        _why_taken(pool, taken, kept, idle),
        ordinals=tuple(dict.fromkeys(moved.values())) or tuple(sorted(ordinals)),
        moved=moved,
        claims={each.device.uuid: _claim_of_all(each, sharers) for each in taken},
        caps=memory.best_effort_caps(beside, request.own_pid),
        why_capped=(explain.BEST_EFFORT if pool.demand.is_whole else explain.BEST_EFFORT_OF_SIZE) if beside else "",
        remedy=explain.OVERRIDE if idle and request.visible_spec.is_scripts else "",
        attainable=attainable,
    )


def _why_taken(pool: _Pool, taken: Sequence[Candidate], kept: Collection[str], idle: Sequence[Device]) -> str:
    request, spec = pool.request, pool.request.visible_spec
    why = explain.taken(pool.ranking, taken, request, kept)
    why += explain.lists_without_effect(request.policy, spec, request.grant)
    # Of what an engine granted there is no other GPU to have.
    if not request.grant.engine and (spec.value is not None or request.in_use):
        why += explain.idle_alternative(idle)
    is_instance = request.processes == 1 and has_instances(candidate.device for candidate in taken)
    why += explain.shortfall(request, len(taken), pool.quota, is_instance=is_instance)
    why += explain.instances_left(pool.ranking, taken) if request.wanted_count > 1 else ""
    return why if pool.quota > 0 else f"{why}; {explain.quota_reached(request.policy.per_user)}"


def _claim_of_all(candidate: Candidate, sharers: int) -> int:
    """What the ranks that share a GPU claim together: never more than it has."""
    claim_bytes = candidate.claim_bytes
    return min(claim_bytes * sharers, candidate.device.memory_total_bytes or claim_bytes)


def _take_none(pool: _Pool, candidates: Sequence[Candidate], free: int, *, waits: bool = False) -> Decision:
    policy, ranking, wanted = pool.request.policy, pool.ranking, pool.request.wanted_count
    if pool.quota <= 0:
        why = explain.quota_reached(policy.per_user)
    elif free:
        why = explain.waiting_for_more(pool.waits_for, free)
    else:
        why = explain.none_taken(candidates, ranking)
    if not waits or not ranking.suitable:
        return Decision(Verdict.REFUSE if policy.busy == "error" else Verdict.CPU, why)
    if pool.suitable_count < wanted < sys.maxsize:
        why += f"; {wanted} are asked for, there are no more than {pool.suitable_count}"
    if policy.busy == "share":
        why += explain.until_it_shares(policy.wait_s - pool.request.waited_s)
    return Decision(Verdict.WAIT, why, waits_for=pool.waits_for)
