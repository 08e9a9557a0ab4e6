"""How many GPUs a process asks for, and which of the candidates it may take, in the order to take them. Pure."""

from __future__ import annotations

import sys

from autogpu.selection import explain, instances
from autogpu.selection.jobs import gpus_of_user
from autogpu.selection.memory import demand_of
from autogpu.selection.model import Tier
from autogpu.selection.occupancy import unmanaged_processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, Sequence

    from autogpu.devices.model import Device
    from autogpu.selection.model import Candidate, Claim, SelectionRequest


def why_none(request: SelectionRequest) -> str:
    """Why the process takes no GPU, whatever there is; ``""`` where it may take some."""
    grant = request.grant
    if grant.is_none and request.visible_spec.source != "script":
        return f"{grant.why}; {grant.remedy}"
    if request.policy.count == 0:
        return explain.COUNT_IS_ZERO
    if request.chosen is not None:
        return ""
    return f"{grant.why}; {grant.remedy}" if grant.needs_none and not request.count_is_set else ""


def wanted_count(request: SelectionRequest) -> int:
    """How many GPUs the process asks for: the script's word, where it has one, else the policy's."""
    if request.positions:
        return len(request.positions)
    if request.policy.count == "all":
        return sys.maxsize
    if request.count_is_set:
        return request.policy.count
    return max(request.policy.count, request.named_count, request.asked_count)


def in_order(candidates: Sequence[Candidate], request: SelectionRequest) -> list[Candidate]:
    """The candidates, which come as they rank, in the order in which this process takes them."""
    uuids = request.uuids or ()
    # What another library has begun on a GPU stays with it, rather than spreading the process over two.
    in_use = {uuids[ordinal] for ordinal in request.in_use}
    ordered = sorted(candidates, key=lambda c: (c.device.uuid not in in_use, c.tier))
    if not request.positions:
        return ordered
    # Of those that are not free, one position takes the best; several keep the GPUs that were named.
    named = {uuids[position] for position in request.positions}
    kept, begun = (Tier.FREE,) if len(named) == 1 else tuple(Tier), in_use & named
    return sorted(
        ordered, key=lambda c: (c.device.uuid not in begun, c.tier, c.tier in kept and c.device.uuid not in named)
    )


def may_take(candidate: Candidate, request: SelectionRequest) -> bool:
    """Whether ``select.busy`` allows the process to be placed there."""
    if not candidate.is_best_effort or candidate.tier is Tier.IDLE_LEASE:
        return True
    demand = demand_of(request)
    if not (demand.is_whole or demand.or_best_effort):
        return False  # what it needs can't be promised to a best-effort job
    if request.policy.busy == "share-own":
        owners = {claim.uid for claim in candidate.claims}
        return owners == {request.own_uid} and not unmanaged_processes(candidate.device, candidate.claims)
    return request.policy.busy == "share"


def best_together(candidates: Sequence[Candidate], request: SelectionRequest) -> list[Candidate]:
    """Those that the process can have together, where MIG instances are among them."""
    if request.positions or not candidates:
        return list(candidates)
    return instances.best_together(candidates, wanted_count(request) // request.processes, request.processes)


def most_together(usable: Sequence[Device], request: SelectionRequest) -> int:
    """How many of these GPUs the process could have together."""
    is_one_each = wanted_count(request) // request.processes <= 1
    return len(usable) if is_one_each else instances.most_of(usable, request.processes)


def user_quota(request: SelectionRequest, claims_on: Mapping[str, Sequence[Claim]]) -> int:
    """How many more GPUs the user may lease."""
    per_user = request.policy.per_user
    return per_user - len(gpus_of_user(claims_on, request.own_uid)) if per_user else sys.maxsize


def within_quota(
    usable: list[Candidate], request: SelectionRequest, claims_on: Mapping[str, Sequence[Claim]]
) -> list[Candidate]:
    """Those that the user may have. One more job on a GPU that is the user's already takes no further one."""
    quota = user_quota(request, claims_on)
    if quota > 0:
        return usable[:quota]
    mine = gpus_of_user(claims_on, request.own_uid)
    return [candidate for candidate in usable if candidate.device.uuid in mine]


def best_of(usable: Sequence[Candidate], request: SelectionRequest) -> list[Candidate]:
    """The best of those that may be taken, as many as are asked for.

    A device name more is no reason to disturb others: it can mean a logical GPU on one of those that there are.
    """
    wanted, policy = wanted_count(request), request.policy
    by_policy = wanted if request.positions or policy.count == "all" else min(policy.count, wanted)
    more = [candidate for candidate in usable[by_policy:wanted] if not candidate.is_best_effort]
    return [*usable[:by_policy], *more]
