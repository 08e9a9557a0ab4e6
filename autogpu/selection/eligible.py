"""How many GPUs a process asks for, and which of the candidates it may take, in the order to take them. Pure."""

from __future__ import annotations

import sys

from autogpu.selection import explain, instances
from autogpu.selection.model import Candidate, SelectionRequest, Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, Sequence

    from autogpu.devices.model import Device


def why_none(request: SelectionRequest) -> str:
    """Why the process takes no GPU, whatever there is; ``""`` where it may take some."""
    grant = request.grant
    is_none = grant.is_none and not request.visible_spec.is_scripts
    if not is_none and request.policy.count == 0:
        return explain.COUNT_IS_ZERO
    needs_none = grant.needs_none and request.named is None and not request.count_is_set
    return f"{grant.why}; {grant.remedy}" if is_none or needs_none else ""


def wanted_count(request: SelectionRequest) -> int:
    """How many GPUs the process asks for: the script's word, where it has one, else the policy's."""
    least = _least_count(request)
    is_set = request.positions or request.count_is_set
    return least if is_set else max(least, request.named_count, request.asked_count)


def _least_count(request: SelectionRequest) -> int:
    """How many it takes also beside others: a device name more can mean a logical GPU on one of those."""
    count = request.policy.count
    return len(request.positions) or (sys.maxsize if count == "all" else count)


def count_waited_for(request: SelectionRequest) -> int:
    """Without so many GPUs the process waits."""
    return wanted_count(request) if request.policy.busy == "wait" else _least_count(request)


def in_order(candidates: Sequence[Candidate], request: SelectionRequest) -> list[Candidate]:
    """The candidates, which come as they rank, in the order in which this process takes them."""
    uuids = request.uuids or ()
    named = {uuids[position] for position in request.positions}
    # Of those that are not free, one position takes the best; several keep the GPUs that were named.
    kept = (Tier.FREE,) if len(named) == 1 else tuple(Tier)
    # What another library has begun on a GPU stays with it, rather than spreading the process over two.
    in_use = {uuids[ordinal] for ordinal in request.in_use}
    begun = in_use & named if named else in_use

    def order(candidate: Candidate) -> tuple[bool, Tier, bool, bool]:
        uuid, tier = candidate.device.uuid, candidate.tier
        return uuid not in begun, tier, tier in kept and uuid not in named, uuid not in in_use

    return sorted(candidates, key=order)


def takeable(candidates: Sequence[Candidate], request: SelectionRequest) -> list[Candidate]:
    """The candidates that the process may take together: whole cards, or one MIG instance a process."""
    allowed = [candidate for candidate in candidates if _may_take(candidate, request)]
    whole = [candidate for candidate in allowed if candidate.device.parent is None]
    if request.positions:
        return allowed
    if wanted_count(request) // request.processes > 1:
        return whole or allowed[: request.processes]
    if request.processes > 1:
        return allowed
    return whole if whole[:1] == allowed[:1] else allowed[:1]


def _may_take(candidate: Candidate, request: SelectionRequest) -> bool:
    """``select.busy`` allows the process to be placed there."""
    if not candidate.is_best_effort or candidate.tier is Tier.IDLE_LEASE:
        return True
    uuids = request.uuids or ()
    is_here = candidate.device.uuid in {uuids[ordinal] for ordinal in request.in_use}
    may_join = candidate.is_joinable or (request.has_waited and candidate.is_settled)
    return request.policy.busy == "share" and (request.joins_at_once or is_here or may_join)


def most_together(usable: Sequence[Device], request: SelectionRequest) -> int:
    """How many of these GPUs the process could have together."""
    is_one_each = wanted_count(request) // request.processes <= 1
    return len(usable) if is_one_each else len(instances.cards(usable)) or min(len(usable), request.processes)


def best_of(usable: Sequence[Candidate], request: SelectionRequest) -> list[Candidate]:
    """The best of those that may be taken, as many as are asked for."""
    least, wanted = _least_count(request), wanted_count(request)
    return [*usable[:least], *(c for c in usable[least:wanted] if not c.is_best_effort)]


def gpus_of_positions(named: Sequence[int], taken: Sequence[int]) -> Mapping[int, int]:
    """By position that a script named, the GPU that it gets: its own if ``taken``, else another, else a shared one."""
    found = {position: position for position in named if position in taken}
    others = [ordinal for ordinal in taken if ordinal not in named]
    missing = [position for position in named if position not in found]
    found.update(zip(missing, others))
    found.update({position: taken[i % len(taken)] for i, position in enumerate(missing[len(others) :])})
    return {position: found[position] for position in named}
