"""The sizes of claims, caps and context reserves, in bytes. Pure functions.

A *claim* is the memory that other jobs leave to the process. A *cap* is the most that its framework may allocate in one
logical GPU. If a limit applies to the whole process, the *context reserve* is the part of it that stays free for memory
that the framework does not allocate itself.
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

# Memory of a CUDA context and its libraries, in addition to the framework's own memory. Source: 300 to 600 MiB in
# reports on compute capability 6 to 9.
CONTEXT_BYTES = 512 << 20

# The part of CONTEXT_BYTES that is loaded at first use, after the context exists: cuBLAS, cuDNN and the framework's
# kernels.
LIBRARIES_BYTES = 256 << 20


def memory_demand(policy: Policy) -> MemoryDemand:
    """Return a process's demand by the policy: its need, else the limit of all virtual GPUs, else the whole GPU."""
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
    """Return how much of each GPU the script lets its framework take; ``None`` if the script sets no limit.

    Args:
        limits: The script's limits in bytes, one for each GPU with a limit.
        fraction: The limit as a part of each GPU's memory, 0 to 1; 0 if unset.
        logical: How many logical GPUs its device names ask for, on ``wanted`` GPUs.
    """
    # The limit applies to each logical GPU, and the script's device names can make several of one GPU.
    each = max(1, -(-logical // max(wanted, 1)))
    # If only some of the GPUs have a limit, the process may use any amount on the others.
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
    return request.script_demand or memory_demand(request.policy)


def heeds_last_runs(request: SelectionRequest) -> bool:
    """True if the process joins other jobs only on a GPU with enough free memory for its script's last runs."""
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
    """Return one size for each UUID; ``choose`` returns the size to keep of two."""
    found: dict[str, Size] = {}
    for each in sizes:
        found.update({uuid: choose(size, found.get(uuid, size)) for uuid, size in each.items()})
    return found


def caps_of_part(demand: MemoryDemand, devices: Iterable[Device]) -> dict[str, Cap]:
    """Return the caps that keep a rank's framework within the rank's claim, keyed by GPU UUID."""
    caps = {}
    for device in devices:
        claim_bytes = demand.on(device)
        claim_bytes = min(claim_bytes, device.memory_total_bytes or claim_bytes)
        caps[device.uuid] = Cap(within_context(claim_bytes), CapCause.RANKS)
    return caps


def usable_bytes(devices: Sequence[Device | None], default_share: float) -> Mapping[int, int]:
    """Return a framework's share of the free memory without its CUDA context, keyed by CUDA ordinal."""
    free = {o: d.memory_free_bytes for o, d in enumerate(devices) if d is not None}
    return {o: int(within_context(size) * default_share) for o, size in free.items() if size is not None}


def context_reserve_bytes(measured_bytes: int | None) -> int:
    """Return the context reserve: a measured bare context and the libraries, at least ``CONTEXT_BYTES``."""
    return CONTEXT_BYTES if measured_bytes is None else max(CONTEXT_BYTES, measured_bytes + LIBRARIES_BYTES)


def within_context(claim_bytes: int) -> int:
    """Return the part of a claim that the framework may allocate: the CUDA context has to fit in, too."""
    return max(claim_bytes - CONTEXT_BYTES, claim_bytes // 2)


def best_effort_caps(
    beside: Iterable[tuple[Device, Sequence[Claim]]], own_pid: int | None = None, sharers: int = 1
) -> dict[str, Cap]:
    """Return the caps of a best-effort job beside these claims, keyed by GPU UUID.

    The job may allocate all free memory. If less than 1 GiB is free, the job still has to start. Then it may allocate
    the largest of these:

    - the free memory
    - an equal part of the memory that is neither used nor claimed by stated needs; the other parts are for jobs whose
      use the driver does not show yet
    - up to 1 GiB of unused memory, even if it is claimed
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
    """Return the cap of each logical GPU, keyed by CUDA ordinal, also of GPUs that the script may use later.

    Args:
        context_reserves: Bytes to reserve if a limit applies to the whole process, keyed by ordinal. A GPU without an
            entry gets an estimate.
        default_share: The part of the free memory that the framework takes without a limit.
        parts: Into how many logical GPUs the framework splits each GPU.
    """
    found = {}
    # A framework that splits a GPU divides the memory that it would take of the whole GPU.
    usable_whole = usable_bytes(decision.visible, default_share) if parts > 1 else {}
    for ordinal, device in enumerate(decision.visible):
        if device is None:
            continue
        limit = _limit_bytes(policy, device, context_reserves.get(ordinal, CONTEXT_BYTES))
        # Of equal caps the first one counts. Put the policy's limit first: it applies even to a job alone on the GPU.
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
    """Return the caps that the script's own limit may not exceed, keyed by CUDA ordinal; empty without a limit."""
    if not request.script_demand:
        return {}
    # The script's limits may exceed a rank's equal part: all ranks on a GPU run the same script, so the script sets the
    # limits of all of them. A grant still applies.
    own = {uuid: cap for uuid, cap in decision.caps.items() if cap.cause is not CapCause.RANKS}
    most = merged((own, granted_bytes(request.grant, decision.visible)), lower_cap)
    return {o: most[device.uuid] for o, device in enumerate(decision.visible) if device and device.uuid in most}


def _limit_bytes(policy: Policy, device: Device, reserve: int) -> int | None:
    total = device.memory_total_bytes
    if policy.limit is None or (policy.limit.percent is not None and total is None):
        return None
    total = total or 1 << 62
    limit = min(policy.limit.of(total) * policy.virtual_gpus, total)
    return max(0, limit - reserve) if policy.limit_includes == "process" else limit
