"""How much memory a framework may allocate on each of its GPUs, in bytes. Pure functions.

A *cap* is the most that the framework may allocate in one logical GPU. If a limit applies to the whole process, the
*context reserve* is the part of it that stays free for memory that the framework does not allocate itself.
"""

from __future__ import annotations

import functools
from types import MappingProxyType
from typing import Mapping, Sequence

from autogpu.caps import CONTEXT_BYTES, Cap, CapCause, lower_cap, within_context
from autogpu.devices.model import Device
from autogpu.frozen import replace
from autogpu.policy.model import Policy
from autogpu.selection.caps import granted_bytes, merged
from autogpu.selection.decision import Decision
from autogpu.selection.model import SelectionRequest

# The part of CONTEXT_BYTES that is loaded at first use, after the context exists: cuBLAS, cuDNN and the framework's
# kernels.
LIBRARIES_BYTES = 256 << 20


def usable_bytes(devices: Sequence[Device | None], default_share: float) -> Mapping[int, int]:
    """Return a framework's share of the free memory without its CUDA context, keyed by CUDA ordinal."""
    free = {o: d.memory_free_bytes for o, d in enumerate(devices) if d is not None}
    return {o: int(within_context(size) * default_share) for o, size in free.items() if size is not None}


def context_reserve_bytes(measured_bytes: int | None) -> int:
    """Return the context reserve: a measured bare context and the libraries, at least ``CONTEXT_BYTES``."""
    return CONTEXT_BYTES if measured_bytes is None else max(CONTEXT_BYTES, measured_bytes + LIBRARIES_BYTES)


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
