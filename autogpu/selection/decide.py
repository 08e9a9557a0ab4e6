"""The choice of a process's GPUs, from its request, the driver's readings and other jobs' claims. Pure functions.

:func:`decide` applies the first of these rules that fits:

1. The process may use no GPU: take none.
2. Something prevents a choice, such as a driver that does not answer: let the framework take the GPUs that
   it would take without autogpu.
3. The script has chosen its GPUs: claim them.
4. The process is a local rank: take its slice of the job's GPUs.
5. In every other case: take the best candidates that the process may use, or wait.
"""

from __future__ import annotations

import sys
from itertools import chain, cycle
from types import MappingProxyType
from typing import Collection, Mapping, Sequence

from autogpu.caps import Cap, lower_cap
from autogpu.devices.enumeration import cards, has_instances
from autogpu.devices.model import Device, by_uuid
from autogpu.engines.model import WORKERS, Denial, LocalRank
from autogpu.frozen import replace
from autogpu.lease.model import Waiter
from autogpu.selection.caps import best_effort_caps, caps_of_part, granted_bytes, merged
from autogpu.selection.decision import Decision, RankSlice, Reason, Shortfall, Verdict
from autogpu.selection.jobs import awaited, claims_in_part, gpus_of_user, parts_of, tier
from autogpu.selection.model import (
    Candidate,
    Claim,
    MemoryDemand,
    SelectionRequest,
    Tier,
    VisibleSpec,
    WantedBy,
)
from autogpu.selection.ranking import best_connected_first, obstacle_for_all, ranking_of, standing

# The bytes of a claim of a whole GPU whose size may be unknown. A process that reads the lease lowers the claim to the
# GPU's size.
_ALL_BYTES = 1 << 50


def decide(
    request: SelectionRequest,
    claims_on: Mapping[str, Sequence[Claim]] = MappingProxyType({}),
    waiters: Sequence[Waiter] = (),
) -> Decision:
    """Return the GPUs that a process takes, and why. If an engine granted parts of GPUs, choose among these parts.

    Args:
        claims_on: The live claims of other jobs, keyed by GPU UUID.
    """
    grant = request.grant
    fraction = grant.fraction
    if fraction is None:
        return _decide(request, claims_on, waiters)
    claims_on = claims_in_part(grant, claims_on)
    parts = parts_of(request.inventory, fraction, claims_on, request.own_pid)
    # Other jobs in the queue wait for the whole GPU, and could not use this part.
    decision = _decide(replace(request, inventory=parts), claims_on, ())
    known = by_uuid(request.inventory.devices)
    visible = tuple(device and known[device.uuid] for device in decision.visible)
    caps = merged((decision.caps, granted_bytes(grant, visible)), lower_cap)
    return replace(decision, request=request, visible=visible, caps=caps)


def _decide(request: SelectionRequest, claims_on: Mapping[str, Sequence[Claim]], waiters: Sequence[Waiter]) -> Decision:
    reason = why_none(request)
    if reason:
        return Decision(Verdict.CPU, reason, request)
    obstacle = _obstacle(request)
    if obstacle:
        # The framework takes these GPUs, although autogpu has not chosen them. Other jobs should see them as claimed.
        claims = dict.fromkeys(request.named_uuids, _ALL_BYTES)
        return Decision(Verdict.CANNOT_CHOOSE, obstacle, request, claims=claims)
    choice = _Choice(request, claims_on, waiters)
    rank = request.grant.dividing_rank
    if request.chosen is not None:
        decision = _respect_choice(choice, request.chosen)
    elif rank is not None:
        decision = _take_slice(choice, rank)
    else:
        decision = _take_best(choice)
    # Among GPUs of equal standing, list the taken GPUs first.
    ranked = sorted(
        choice.ranking.candidates, key=lambda each: (standing(each), each.device.uuid not in decision.claims)
    )
    return replace(
        decision,
        request=request,
        ranking=replace(choice.ranking, candidates=tuple(ranked)),
        visible=choice.visible,
        held=len(choice.held),
    )


def why_none(request: SelectionRequest) -> Reason | None:
    """Return why the process takes no GPU even if all are free; ``None`` if it may take GPUs."""
    grant = request.grant
    if grant.is_none and not request.visible_spec.is_scripts:
        return Reason.NOT_GRANTED
    if request.policy.count == 0:
        return Reason.COUNT_IS_ZERO
    is_asked_for = request.named is not None or request.wanted.by is WantedBy.POLICY
    return Reason.NOT_GRANTED if grant.denial is Denial.COORDINATOR and not is_asked_for else None


def _obstacle(request: SelectionRequest) -> Reason | None:
    inventory = request.inventory
    uuids = request.uuids
    if inventory.failure:
        return Reason.DRIVER_FAILURE
    if uuids is None or len(uuids) != request.gpu_count:
        return Reason.COUNTS_DIFFER
    if inventory.unreadable and uuids and by_uuid(inventory.devices).keys().isdisjoint(uuids):
        return Reason.UNREADABLE
    return None


class _Choice:
    """The values that a choice depends on: the request, the ranked GPUs, the claims on them and the user's quota.

    Attributes:
        visible: The process's GPUs in the order of their CUDA ordinals; ``None`` for a GPU that could not be read.
        suitable_count: How many GPUs could serve the process if none were in use.
        held: UUIDs of the GPUs that the user's jobs hold already.
        quota: How many more GPUs the user may hold; ``sys.maxsize`` without a limit.
        is_at_cap: True if the user holds as many GPUs as the policy allows, even if that limit does not apply to this
            request.
    """

    def __init__(
        self, request: SelectionRequest, claims_on: Mapping[str, Sequence[Claim]], waiters: Sequence[Waiter]
    ) -> None:
        known = by_uuid(request.inventory.devices)
        self.request = request
        self.claims_on = claims_on
        self.visible = tuple(known.get(uuid) for uuid in request.uuids or ())
        self.demand = request.demand_among()
        self.is_demand_unknown = request.demand.is_whole
        ranking = ranking_of(
            filter(None, self.visible), request.policy, request.visible_spec, request.own_pid, self.demand, claims_on
        )
        self.ranking = replace(ranking, candidates=self._completed(ranking.candidates, waiters))
        suitable = ranking.suitable
        together = len(cards(suitable)) or min(len(suitable), request.processes)
        self.suitable_count = len(suitable) if request.takes_one else together
        self.held = gpus_of_user(claims_on, request.own_uid)
        # GPUs that the script, an engine or a list names count towards the user's quota. They are taken even beyond it.
        has_cap = request.per_user and not request.names_cards
        self.quota = request.per_user - len(self.held) if has_cap else sys.maxsize
        is_reached_though_exempt = not request.per_user and 0 < request.policy.per_user <= len(self.held)
        self.is_at_cap = self.quota <= 0 or is_reached_though_exempt

    def _completed(self, candidates: Sequence[Candidate], waiters: Sequence[Waiter]) -> tuple[Candidate, ...]:
        """Add to each candidate if the queue could use it, and the memory that the script's last runs took."""
        theirs = awaited(candidates, waiters, self.claims_on)
        last_runs = self.request.last_runs if self.request.heeds_last_runs else {}
        return tuple(
            replace(each, is_awaited=each.device.uuid in theirs, last_runs=last_runs.get(each.device.name))
            for each in candidates
        )

    @property
    def waits_for(self) -> int:
        """The number of GPUs to wait for. A user at the cap waits until one of the user's own jobs releases a GPU."""
        wanted = self.request.wanted
        waits_for = wanted.count if self.request.busy == "wait" else wanted.minimum
        return min(waits_for, self.suitable_count, max(self.quota, 1))

    def claims(self, device: Device) -> Sequence[Claim]:
        return self.claims_on.get(device.uuid, ())

    def within_quota(self, allowed: Sequence[Candidate]) -> Sequence[Candidate]:
        if self.quota > 0:
            return allowed[: self.quota]
        # At the cap, the job may still share a GPU that the user holds already.
        return [candidate for candidate in allowed if candidate.device.uuid in self.held]

    def unclaimed_bytes(self, device: Device, demand: MemoryDemand) -> int:
        """Return the bytes to claim on the GPU: the demand, but no more than other jobs have left unclaimed."""
        claimed = sum(claim.bytes for claim in self.claims(device))
        return max(0, min(demand.on(device), (device.memory_total_bytes or 1) - claimed))

    def is_free(self, device: Device) -> bool:
        return tier(device, self.request.own_pid, self.claims(device)) is Tier.FREE

    def idle_alternatives(self, devices: Sequence[Device]) -> tuple[Device, ...]:
        """Return the machine's other free GPUs that the policy allows; none if all ``devices`` are free."""
        if all(map(self.is_free, devices)):
            return ()
        policy = self.request.policy
        others = [device for device in self.request.inventory.devices if device not in devices and not device.is_small]
        # The user would get such a GPU by unsetting CUDA_VISIBLE_DEVICES. Then select.devices applies.
        allowed = [device for device in others if obstacle_for_all(device, policy, VisibleSpec()) is None]
        return tuple(filter(self.is_free, allowed))


def _as_taken(candidate: Candidate) -> Candidate:
    """Return the candidate. If a queued job could take the GPU, give it the worst tier and no claim."""
    if not candidate.is_awaited:
        return candidate
    return replace(candidate, tier=Tier.AWAITED, is_best_effort=True, claim_bytes=0)


def _respect_choice(choice: _Choice, chosen: Sequence[int]) -> Decision:
    by_ordinal = dict(enumerate(choice.visible))
    named = [device for device in map(by_ordinal.get, chosen) if device]
    return Decision(
        Verdict.NOT_OUR_CHOICE,
        Reason.CHOSEN_BY_SCRIPT,
        claims={device.uuid: choice.unclaimed_bytes(device, choice.demand) for device in named},
        idle_instead=choice.idle_alternatives(named),
    )


def _take_slice(choice: _Choice, rank: LocalRank) -> Decision:
    request = choice.request
    usable = _gpus_of_ranks(choice, rank)
    if not usable or not choice.ranking.suitable:
        return _without_gpu(request, Reason.NONE_FREE)
    numbers, sharers = rank.slice(len(usable))
    # A rank may take several cards, but only one MIG instance.
    mine = list(cards(usable[number] for number in numbers)) or [usable[numbers[0]]]
    mine = mine[: request.wanted.minimum]
    # A GPU number that the script sets is an index into the job's GPUs.
    named = [usable[number] if number < len(usable) else mine[0] for number in request.numbers]
    mine = list(dict.fromkeys(named)) or mine
    # Workers of one program may need different amounts of memory, so don't cap each at an equal part.
    claims, caps = _memory_of_slice(choice, mine, 1 if rank.launcher == WORKERS else sharers)
    return Decision(
        Verdict.TAKE,
        Reason.LOCAL_RANK,
        ordinals=tuple(map(choice.visible.index, mine)),
        moved=dict(zip(request.numbers, map(choice.visible.index, named))),
        claims=claims,
        caps=caps,
        attainable=len(numbers),
        of_ranks=tuple(dict.fromkeys(usable[number].uuid for number in rank.firsts(len(usable)))),
        slice=RankSlice(rank, rank.at_most(len(usable)), sharers),
    )


def _gpus_of_ranks(choice: _Choice, rank: LocalRank) -> list[Device]:
    """Return the GPUs that the ranks divide: the GPUs of their common claim, else those that the policy allows."""
    usable = [device for device in choice.visible if device in choice.ranking.pool]
    promised = choice.request.promised
    if promised is not None:
        held = [device for device in usable if device.uuid in promised]
        # If each rank gets several GPUs, put the GPUs that no other job uses first.
        has_several = len(held) >= 2 * rank.at_most(len(held))
        return sorted(held, key=lambda device: not promised[device.uuid]) if has_several else held
    # Use MIG instances only if there are fewer cards than ranks.
    whole = list(cards(usable))
    return whole if len(whole) >= rank.at_most(len(usable)) else usable


def _memory_of_slice(
    choice: _Choice, mine: Sequence[Device], sharers: int
) -> tuple[Mapping[str, int], Mapping[str, Cap]]:
    """Return the bytes that a rank claims, and the caps on its memory, both keyed by GPU UUID."""
    request = choice.request
    demand = request.demand_among(sharers)
    late = [device for device in mine if _is_late(choice, device, demand)]
    claims = {device.uuid: 0 if device in late else choice.unclaimed_bytes(device, demand) for device in mine}
    is_part = sharers > 1 or request.grant.fraction is not None
    caps = caps_of_part(demand, mine) if is_part else {}
    if choice.is_demand_unknown:
        beside = [(device, choice.claims(device)) for device in late]
        caps.update(best_effort_caps(beside, request.own_pid, sharers))
    return claims, caps


def _is_late(choice: _Choice, device: Device, demand: MemoryDemand) -> bool:
    """True if the rank claims nothing on the GPU: its job has no claim there, or other jobs claimed first."""
    request = choice.request
    if request.promised is not None and not request.promised.get(device.uuid):
        return True
    # If an engine granted the GPU, earlier claims of other jobs don't count.
    is_first_come = choice.is_demand_unknown and not request.grant.engine
    return is_first_come and choice.unclaimed_bytes(device, demand) < demand.on(device)


def _take_best(choice: _Choice) -> Decision:
    request = choice.request
    wanted = request.wanted
    kept = _uuids_to_take_first(choice)
    candidates = _in_order(choice, kept)
    allowed = _takeable(candidates, request)
    allowed = best_connected_first(allowed, min(wanted.count, choice.quota), request, kept, choice.is_free)
    usable = choice.within_quota(allowed)
    further = [each for each in usable[wanted.minimum : wanted.count] if not each.is_best_effort]
    taken = [*usable[: wanted.minimum], *further]
    if len(taken) < choice.waits_for and _waits(request, choice.within_quota(candidates)):
        return _take_none(choice, len(taken), waits=True)
    if not taken:
        return _take_none(choice, 0)
    return _take(choice, taken, kept, attainable=0 if request.numbers else len(usable))


def _uuids_to_take_first(choice: _Choice) -> frozenset[str]:
    """Return the UUIDs of the GPUs to take before all others, even before idler GPUs.

    These are the GPUs on which another library of this process has a CUDA context. If the script uses GPU numbers,
    return only GPUs at these numbers: those with such a context and, with ``keeps_places``, the free ones.
    """
    request = choice.request
    in_use = request.uuids_in_use
    if not request.numbers:
        return in_use
    if request.keeps_places:
        free = [each for each in choice.ranking.candidates if each.tier is Tier.FREE and not each.is_awaited]
        in_use |= {each.device.uuid for each in free}
    return in_use & frozenset(request.named_uuids)


def _in_order(choice: _Choice, kept: Collection[str]) -> list[Candidate]:
    in_use = choice.request.uuids_in_use

    def order(candidate: Candidate) -> tuple[bool, Tier, bool]:
        uuid = candidate.device.uuid
        return uuid not in kept, candidate.tier, uuid in in_use

    return sorted(map(_as_taken, choice.ranking.candidates), key=order)


def _takeable(candidates: Sequence[Candidate], request: SelectionRequest) -> list[Candidate]:
    """Return the candidates that the process may take together: cards, or one MIG instance for each process."""
    allowed = [candidate for candidate in candidates if _may_take(candidate, request)]
    whole = [candidate for candidate in allowed if candidate.device.parent is None]
    if not request.takes_one:
        return whole or allowed[: request.processes]
    if request.processes > 1:
        return allowed
    return whole if whole[:1] == allowed[:1] else allowed[:1]


def _may_take(candidate: Candidate, request: SelectionRequest) -> bool:
    if not candidate.is_best_effort:
        return True
    is_share = request.busy == "share"
    is_idle = candidate.tier is Tier.IDLE_LEASE
    if (is_idle and candidate.fits_last_runs) or (is_share and candidate.is_joinable):
        return True
    is_here = candidate.device.uuid in request.uuids_in_use
    starts_anyway = request.has_waited and candidate.is_settled
    return is_share and (request.joins_at_once or is_here or starts_anyway)


def gpus_of_numbers(numbers: Sequence[int], taken: Sequence[int], kept: Collection[int] = ()) -> Mapping[int, int]:
    """Return the ordinal of the GPU for each of the script's numbers. With too few GPUs, several numbers share one.

    Args:
        taken: Ordinals of the GPUs that the process takes, best first.
        kept: Numbers that keep the GPU of the same ordinal.
    """
    others = chain((ordinal for ordinal in taken if ordinal not in kept), cycle(taken))
    return {number: number if number in kept else next(others) for number in numbers}


def _waits(request: SelectionRequest, candidates: Sequence[Candidate]) -> bool:
    """True if the process should wait for a GPU.

    After the time of ``select.wait``, the process still waits until every job on the candidates has run for a minute or
    has stated its need. Otherwise two waiting jobs could both be capped at the same free memory.
    """
    if request.joins_at_once or request.busy not in ("share", "wait"):
        return False
    return not request.has_waited or not all(candidate.is_settled for candidate in candidates)


def _take(choice: _Choice, taken: Sequence[Candidate], kept: Collection[str], attainable: int) -> Decision:
    request = choice.request
    devices = [candidate.device for candidate in taken]
    ordinals = tuple(map(choice.visible.index, devices))
    own = [ordinal for ordinal, device in zip(ordinals, devices) if device.uuid in kept]
    moved = gpus_of_numbers(request.numbers, ordinals, own)
    beside = [(candidate.device, candidate.claims) for candidate in taken if candidate.is_best_effort]
    sharers = -(-request.processes // len(taken))
    return Decision(
        Verdict.TAKE,
        _why_taken(choice, taken, kept),
        ordinals=tuple(dict.fromkeys(moved.values())) or tuple(sorted(ordinals)),
        moved=moved,
        claims={each.device.uuid: _claim_of_all(each, sharers) for each in taken},
        caps=best_effort_caps(beside, request.own_pid),
        attainable=attainable,
        shortfall=_shortfall(choice, taken),
        is_at_cap=choice.is_at_cap,
        idle_instead=choice.idle_alternatives(devices),
    )


def _why_taken(choice: _Choice, taken: Sequence[Candidate], kept: Collection[str]) -> Reason:
    total = len(choice.ranking.pool)
    uuids = {candidate.device.uuid for candidate in taken}
    if total == 1:
        return Reason.ONLY_ONE
    if len(taken) == total:
        return Reason.ALL
    if not uuids.isdisjoint(choice.request.uuids_in_use.intersection(kept)):
        return Reason.HAS_CONTEXT
    if not uuids.isdisjoint(kept):
        return Reason.NUMBERED
    return Reason.IDLEST if taken[-1].tier is Tier.FREE else Reason.LEAST_BUSY


def _shortfall(choice: _Choice, taken: Sequence[Candidate]) -> Shortfall | None:
    request = choice.request
    wanted = request.wanted
    count = len(taken)
    is_all = wanted.count >= sys.maxsize and not wanted.named
    if count >= max(wanted.count, wanted.named) or is_all:
        return None
    if request.processes == 1 and has_instances(candidate.device for candidate in taken):
        return Shortfall.ONE_INSTANCE
    if choice.quota < wanted.count:
        return Shortfall.PER_USER_CAP
    if count >= wanted.count:
        return Shortfall.SELECT_COUNT
    return Shortfall.NO_MORE if len(request.uuids or ()) <= count else Shortfall.BUSY


def _claim_of_all(candidate: Candidate, sharers: int) -> int:
    claim_bytes = candidate.claim_bytes
    return min(claim_bytes * sharers, candidate.device.memory_total_bytes or claim_bytes)


def _why_none(choice: _Choice, free: int) -> Reason:
    if choice.quota <= 0:
        return Reason.PER_USER_CAP
    return Reason.TOO_FEW_FREE if free else Reason.NONE_FREE


def _take_none(choice: _Choice, free: int, *, waits: bool = False) -> Decision:
    request = choice.request
    reason = _why_none(choice, free)
    if waits and choice.ranking.suitable:
        return Decision(
            Verdict.WAIT,
            reason,
            free=free,
            waits_for=choice.waits_for,
            attainable=choice.suitable_count,
            shortfall=Shortfall.PER_USER_CAP if 0 < choice.quota < request.wanted.count else None,
        )
    return _without_gpu(request, reason)


def _without_gpu(request: SelectionRequest, reason: Reason) -> Decision:
    return Decision(Verdict.REFUSE if request.busy == "error" else Verdict.CPU, reason)
