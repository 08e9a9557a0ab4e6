"""Every number of bytes that a process claims or is held to: claim, cap, context reserve. Pure.

A *claim* is what others leave to the process. A *cap* is what its framework may allocate in one logical GPU. The
*context reserve* is the part of a limit on the whole process that is kept free for what the framework does not
allocate itself.
"""

from __future__ import annotations

import functools
from types import MappingProxyType
from typing import Callable, Iterable, Mapping, Sequence, TypeVar

from autogpu.caps import Cap, CapCause, lower_cap
from autogpu.devices.model import Device
from autogpu.frozen import replace
from autogpu.policy.model import Policy
from autogpu.selection.decision import Decision
from autogpu.selection.grants import Grant
from autogpu.selection.jobs import free_bytes, spare_bytes
from autogpu.selection.model import Claim, MemoryDemand, SelectionRequest
from autogpu.text import GIB

TYPE_CHECKING = False
if TYPE_CHECKING:
    Size = TypeVar("Size", int, Cap)

# What a CUDA context and its libraries take beside the framework's own memory. Source: 300 to 600 MiB in reports on
# compute capability 6 to 9.
CONTEXT_BYTES = 512 << 20

# Of that, what is loaded when first used, after the context itself: cuBLAS, cuDNN and the framework's kernels.
LIBRARIES_BYTES = 256 << 20


def memory_demand(policy: Policy) -> MemoryDemand:
    """How much of each GPU a process claims: what it needs, else the limit of all its virtual GPUs, else all."""
    if policy.need_bytes is not None:
        return MemoryDemand(bytes=policy.need_bytes)
    if policy.limit is None:
        return MemoryDemand()
    size = policy.limit.bytes
    percent = policy.limit.percent
    parts = policy.virtual_gpus
    return MemoryDemand(
        bytes=None if size is None else size * parts,
        percent=None if percent is None else percent * parts,
        context_bytes=0 if policy.limit_includes == "process" else CONTEXT_BYTES,
        is_limit=True,
    )


def demand_of_script(limits: Sequence[int], fraction: float, logical: int, wanted: int) -> MemoryDemand | None:
    """How much of each GPU a script itself lets its framework take; ``None`` where it says nothing.

    Args:
        limits: In bytes, for each GPU for which it set one.
        fraction: The same as a part of each GPU's memory, 0 to 1; 0 if unset.
        logical: How many logical GPUs its names ask for, on so many ``wanted`` GPUs.
    """
    # What the script allows is taken once for each of the logical GPUs that its names make of one.
    each = max(1, -(-logical // max(wanted, 1)))
    # A limit on some of the GPUs says nothing of what the others will take.
    is_limited = bool(limits) and len(limits) >= wanted
    if not is_limited and not fraction:
        return None
    return MemoryDemand(
        bytes=max(limits) * each if is_limited else None,
        percent=None if is_limited else 100 * min(fraction * each, 1.0),
        context_bytes=CONTEXT_BYTES,
        is_limit=True,
        or_best_effort=True,
    )


def demand_told(request: SelectionRequest) -> MemoryDemand:
    """How much a process claims by the script's own settings, else by the policy."""
    return request.script_demand or memory_demand(request.policy)


def heeds_last_runs(request: SelectionRequest) -> bool:
    """True if the process waits rather than join others where its script's last runs would not have fitted."""
    return request.busy == "share" and not request.joins_at_once and demand_told(request).is_whole


def demand_of(request: SelectionRequest, sharers: int = 1) -> MemoryDemand:
    """Return the memory that a process claims: its stated need or limit, else an equal part among ``sharers``."""
    demand = demand_told(request)
    if sharers == 1 or not demand.is_whole:
        or_best_effort = demand.or_best_effort or request.joins_at_once or request.has_waited
        return replace(demand, or_best_effort=or_best_effort, may_join=request.busy == "share")
    return MemoryDemand(percent=100 / sharers, is_limit=True, or_best_effort=True)  # the CUDA context included


def granted_bytes(grant: Grant, devices: Sequence[Device | None]) -> Mapping[str, Cap]:
    """Return the cap of a granted fraction, keyed by GPU UUID; no entry for a GPU whose size is unknown."""
    caps = {}
    for device in devices:
        if grant.fraction is not None and device is not None and device.memory_total_bytes is not None:
            granted = int(device.memory_total_bytes * grant.fraction)
            caps[device.uuid] = Cap(within_context(granted), CapCause.GRANT, grant.engine)
    return caps


def merged(sizes: Iterable[Mapping[str, Size]], choose: Callable[[Size, Size], Size]) -> dict[str, Size]:
    """One size for each UUID: what ``choose`` makes of those that several tell."""
    found: dict[str, Size] = {}
    for each in sizes:
        found.update({uuid: choose(size, found.get(uuid, size)) for uuid, size in each.items()})
    return found


def caps_of_part(demand: MemoryDemand, devices: Iterable[Device]) -> dict[str, Cap]:
    """Return what a rank's framework may allocate of the rank's claim, keyed by GPU UUID."""
    caps = {}
    for device in devices:
        claim_bytes = demand.on(device)
        claim_bytes = min(claim_bytes, device.memory_total_bytes or claim_bytes)
        caps[device.uuid] = Cap(within_context(claim_bytes), CapCause.RANKS)
    return caps


def usable_bytes(devices: Sequence[Device | None], default_share: float) -> Mapping[int, int]:
    """By CUDA ordinal, what a framework without a limit takes: its share of what is free, less its CUDA context."""
    free = {o: d.memory_free_bytes for o, d in enumerate(devices) if d is not None}
    return {o: int(within_context(size) * default_share) for o, size in free.items() if size is not None}


def context_reserve_bytes(measured_bytes: int | None) -> int:
    """The part of a limit on the whole process that is kept free: what a bare context takes, if measured, and more."""
    return CONTEXT_BYTES if measured_bytes is None else max(CONTEXT_BYTES, measured_bytes + LIBRARIES_BYTES)


def within_context(claim_bytes: int) -> int:
    """The part of a claim that the framework may allocate: the claim has to hold the CUDA context as well."""
    return max(claim_bytes - CONTEXT_BYTES, claim_bytes // 2)


def best_effort_caps(
    beside: Iterable[tuple[Device, Sequence[Claim]]], own_pid: int | None = None, sharers: int = 1
) -> dict[str, Cap]:
    """Return what a best-effort job may allocate beside these claims, keyed by UUID: all that is free.

    If that is next to nothing, and the job has to start, it is an equal part of what is not used and no job has stated:
    the other parts are for the jobs that have yet to show what they use. In any case it is up to 1 GiB that is not
    used, although it is claimed.
    """
    found = {}
    for device, claims in beside:
        free = free_bytes(device, own_pid, claims)
        if free is not None:
            unstated = spare_bytes(device, own_pid, [claim for claim in claims if claim.is_stated_of(device)])
            newcomers = sum(not claim.is_shown_on(device) for claim in claims)
            least = max((unstated or 0) // (newcomers + 1), min(device.memory_free_bytes or 0, GIB))
            available = free if free >= GIB else max(free, least)
            found[device.uuid] = Cap(within_context(available // sharers), CapCause.SHARED)
    return found


def caps(
    policy: Policy,
    decision: Decision,
    context_reserves: Mapping[int, int] = MappingProxyType({}),
    *,
    default_share: float = 1.0,
    parts: int = 1,
) -> Mapping[int, Cap]:
    """By CUDA ordinal, also of GPUs that a script may name later, the most bytes that each logical GPU may allocate.

    Args:
        context_reserves: By ordinal, of a limit on the whole process; elsewhere an estimate.
        default_share: Of the free memory, the part that the framework takes where nothing limits it.
        parts: Into how many the framework splits each GPU.
    """
    found = {}
    # In equal parts what the framework would take whole.
    usable_whole = usable_bytes(decision.visible, default_share) if parts > 1 else {}
    for ordinal, device in enumerate(decision.visible):
        if device is None:
            continue
        limit = _limit_bytes(policy, device, context_reserves.get(ordinal, CONTEXT_BYTES))
        # Of equal caps the first counts: a limit would be as low with the GPU to itself.
        known = []
        if limit is not None:
            known.append(Cap(limit, CapCause.LIMIT))
        if device.uuid in decision.caps:
            known.append(decision.caps[device.uuid])
        if limit is None and ordinal in usable_whole:
            known.append(Cap(usable_whole[ordinal], CapCause.SPLIT))
        if known:
            lowest = functools.reduce(lower_cap, known)
            found[ordinal] = replace(lowest, bytes=lowest.bytes // parts)
    return found


def ceilings(decision: Decision, request: SelectionRequest) -> Mapping[int, Cap]:
    """By CUDA ordinal, what a limit of the script's own may not exceed; empty where it has none."""
    if not request.script_demand:
        return {}
    # Ranks that share a GPU are of one job, and so is what their script says, up to what was granted.
    own = {uuid: cap for uuid, cap in decision.caps.items() if cap.cause is not CapCause.RANKS}
    most = merged((own, granted_bytes(request.grant, decision.visible)), lower_cap)
    return {o: most[device.uuid] for o, device in enumerate(decision.visible) if device and device.uuid in most}


def _limit_bytes(policy: Policy, device: Device, reserve: int) -> int | None:
    """Of the policy's limit on a GPU, what the framework may allocate in all its virtual GPUs together."""
    total = device.memory_total_bytes
    if policy.limit is None or (policy.limit.percent is not None and total is None):
        return None
    total = total or 1 << 62
    limit = min(policy.limit.of(total) * policy.virtual_gpus, total)
    return max(0, limit - reserve) if policy.limit_includes == "process" else limit
