"""Every number of bytes that a process is promised or held to: claim, cap, context reserve. Pure.

A *claim* is what others leave to the process. A *cap* is what its framework may allocate in one logical GPU. The
*context reserve* is the part of a limit on the whole process that is kept free for what the framework does not
allocate itself.
"""

from __future__ import annotations

from types import MappingProxyType

from autogpu.reporting.text import GIB
from autogpu.selection.model import MemoryDemand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, Sequence

    from autogpu.devices.model import Device
    from autogpu.policy import Policy
    from autogpu.selection.model import Decision, SelectionRequest

# What a CUDA context and its libraries take beside the framework's own memory. Source: 300 to 600 MiB in reports on
# compute capability 6 to 9.
CONTEXT_BYTES = 512 << 20

# Of that, what comes after the context itself: handles and kernels of cuBLAS, cuDNN and the framework, loaded when
# first used. How much a script will load can't be known beforehand.
LIBRARIES_BYTES = 256 << 20


def memory_demand(policy: Policy) -> MemoryDemand:
    """How much of each GPU a process claims: what it needs, else the limit of all its virtual GPUs, else all."""
    if policy.need_bytes is not None:
        return MemoryDemand(bytes=policy.need_bytes)
    if policy.limit is None:
        return MemoryDemand()
    size, percent, parts = policy.limit.bytes, policy.limit.percent, policy.virtual_gpus
    return MemoryDemand(
        bytes=None if size is None else size * parts,
        percent=None if percent is None else percent * parts,
        context_bytes=0 if policy.limit_includes == "process" else CONTEXT_BYTES,
        is_limit=True,
    )


def script_demand(limit_bytes: int | None, fraction: float) -> MemoryDemand | None:
    """What a script itself lets its framework take of each GPU; ``None`` where it says nothing."""
    if limit_bytes is None and not fraction:
        return None
    percent = 100 * fraction if limit_bytes is None else None
    return MemoryDemand(limit_bytes, percent, CONTEXT_BYTES, is_limit=True, or_best_effort=True)


def demand_of_script(limits: Sequence[int], fraction: float, logical: int, wanted: int) -> MemoryDemand | None:
    """What a script itself lets its framework take of each GPU, by all that it said; ``None`` where it says nothing.

    Args:
        limits: In bytes, for each GPU for which it set one.
        fraction: The same as a part of each GPU's memory, 0 to 1; 0 if unset.
        logical: How many logical GPUs its names ask for.
        wanted: How many GPUs it asks for.
    """
    # A limit on some of the GPUs says nothing of what the others will take.
    is_limited = bool(limits) and len(limits) >= wanted
    # What the script allows is taken once for each of the logical GPUs that its names make of one.
    each = max(1, -(-logical // max(wanted, 1)))
    return script_demand(max(limits) * each if is_limited else None, min(fraction * each, 1.0))


def demand_of(request: SelectionRequest) -> MemoryDemand:
    """What a process claims: the script's own word, else the policy's, else the part that an engine granted."""
    demand, fraction = request.script_demand or memory_demand(request.policy), request.grant.fraction
    return demand if fraction is None or not demand.is_whole else part_of_gpu(fraction)


def granted_bytes(fraction: float, devices: Sequence[Device | None]) -> Mapping[int, int]:
    """By CUDA ordinal, what the framework may allocate in that part of a GPU; no entry where its size is unknown."""
    totals = {o: d.memory_total_bytes for o, d in enumerate(devices) if d is not None}
    return {o: within_context(int(total * fraction)) for o, total in totals.items() if total is not None}


def part_of_gpu(fraction: float) -> MemoryDemand:
    """That part of a GPU, the CUDA context included."""
    return MemoryDemand(percent=100 * fraction, is_limit=True, or_best_effort=True)


def usable_bytes(devices: Sequence[Device | None], default_share: float) -> Mapping[int, int]:
    """By CUDA ordinal, what the framework would take of a GPU where nothing limits it; no entry where that is unknown.

    Args:
        default_share: Of the free memory, beside the CUDA context.
    """
    free = {o: d.memory_free_bytes for o, d in enumerate(devices) if d is not None}
    return {o: int(within_context(size) * default_share) for o, size in free.items() if size is not None}


def context_reserve_bytes(measured_bytes: int | None) -> int:
    """What of a limit on the whole process is kept free for what the framework does not allocate itself.

    Args:
        measured_bytes: What the process takes with nothing but a context; ``None`` if that could not be measured.
    """
    return CONTEXT_BYTES if measured_bytes is None else max(CONTEXT_BYTES, measured_bytes + LIBRARIES_BYTES)


def within_context(claim_bytes: int) -> int:
    """What the framework may allocate within a claim that has to hold the CUDA context as well."""
    return max(claim_bytes - CONTEXT_BYTES, claim_bytes // 2)


def best_effort_share(device: Device, room_bytes: int | None) -> int | None:
    """What a job to which nothing is promised may take beside others: half of what is free and not promised.

    It must not take what they were about to grow into. Where all is promised, mostly to jobs that said nothing of
    their size, it is half of what is free.

    Args:
        room_bytes: What is neither used nor promised; ``None`` where that is unknown.
    """
    if device.memory_free_bytes is None:
        return None
    return (device.memory_free_bytes if room_bytes is None or room_bytes < GIB else room_bytes) // 2


def caps(
    policy: Policy,
    decision: Decision,
    context_reserves: Mapping[int, int] = MappingProxyType({}),
    *,
    default_share: float = 1.0,
) -> Mapping[int, int]:
    """By CUDA ordinal, the most bytes that each logical GPU may allocate; no entry means no cap.

    Also of GPUs that were not taken: a script may name them later.

    Args:
        context_reserves: By ordinal, of a limit on the whole process; elsewhere an estimate.
        default_share: Of the free memory, the part that the framework takes where nothing limits it.
    """
    found = {}
    usable_whole = usable_bytes(decision.visible, default_share)
    for ordinal, device in enumerate(decision.visible):
        if device is not None:
            usable = _cap_of_limit(policy, device, context_reserves.get(ordinal, CONTEXT_BYTES))
            if usable is None:
                usable = decision.shares.get(ordinal)
            if usable is None and policy.virtual_gpus > 1:
                usable = usable_whole.get(ordinal)  # in equal parts what the framework would take whole
            known = [size for size in (usable, decision.granted.get(ordinal)) if size is not None]
            if known:
                found[ordinal] = min(known) // policy.virtual_gpus
    return found


def _cap_of_limit(policy: Policy, device: Device, reserve: int) -> int | None:
    """What the policy's limit lets the framework allocate on a GPU, in all its virtual GPUs together."""
    limit = _limit_bytes(policy, device)
    return limit if limit is None or policy.limit_includes != "process" else max(0, limit - reserve)


def _limit_bytes(policy: Policy, device: Device) -> int | None:
    if policy.limit is None or (policy.limit.percent is not None and device.memory_total_bytes is None):
        return None
    total_bytes = device.memory_total_bytes or 1 << 62
    return min(policy.limit.of(total_bytes) * policy.virtual_gpus, total_bytes)
