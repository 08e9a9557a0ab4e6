"""The cause of an out-of-memory error: the cap of the process, and the other jobs and processes on the GPU."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Sequence

from autogpu import lease
from autogpu.caps import CONTEXT_BYTES, Cap, CapCause
from autogpu.devices.model import Device, by_uuid
from autogpu.frameworks.model import Assignment, OutOfMemory
from autogpu.frozen import replace
from autogpu.process import unix_s
from autogpu.selection.exhaustion import Exhaustion, Neighbour, remedy_for
from autogpu.selection.jobs import bytes_by_pid, claims_by_gpu, compute_pids, jobs_of, unmanaged_processes
from autogpu.selection.model import Claim, SelectionRequest
from autogpu.users import owner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.allocation import Allocation
    from autogpu.frameworks.model import Framework

# The most time for a reading of the driver, because the user waits for the prompt.
_DEADLINE_S = 3.0


def exhaustion(
    error: OutOfMemory, framework: Framework, allocation: Allocation, request: SelectionRequest, assignment: Assignment
) -> Exhaustion | None:
    """Return the causes of the error, by the driver and the leases; ``None`` if the process's GPUs are unknown."""
    ordinal = _ordinal(error, framework, request, assignment)
    decision = allocation.decision
    known = decision.at([ordinal]) if decision else []
    if decision is None or not known:
        return None
    device, others = _now(allocation, known[0], has_context=ordinal in allocation.cuda.ordinals_in_use())
    cap = _cap(error, request, assignment, ordinal, known[0])
    if cap is None and others == []:
        cap = _own_part(framework, assignment.usable.get(ordinal, 0))
    held = bytes_by_pid(device).get(os.getpid(), 0)
    is_counted = framework.peak_bytes() > 0
    needed = framework.bytes_to_go_on(error) + CONTEXT_BYTES if is_counted else _with_asked(held, error)
    is_child = allocation.holding is not None and allocation.holding.is_parents
    is_followed = allocation.this_run.teaches_next and request.heeds_last_runs and not is_child
    return Exhaustion(
        device=device,
        cap=cap,
        held_bytes=held,
        asked_bytes=error.asked_bytes,
        needed_bytes=needed,
        others=tuple(others or ()),
        remedy=remedy_for(cap, needed, device, request, is_child=is_child, names_busy=decision.idle_way is not None),
        next_waits=is_followed and is_counted,
    )


def _with_asked(held_bytes: int, error: OutOfMemory) -> int:
    return held_bytes + error.asked_bytes if held_bytes else 0


def _ordinal(error: OutOfMemory, framework: Framework, request: SelectionRequest, assignment: Assignment) -> int:
    # A framework that takes the first GPUs counts all GPUs, as CUDA does, and not only the GPUs assigned to it.
    if framework.TAKES_FIRST_GPUS:
        return error.ordinal
    place = error.ordinal // assignment.logical_gpus
    ordinals = assignment.ordinals or tuple(request.named or ())
    return ordinals[min(place, len(ordinals) - 1)] if ordinals else place


def _now(allocation: Allocation, known: Device, *, has_context: bool) -> tuple[Device, list[Neighbour] | None]:
    """Return a new reading of the GPU ``known``, and the other jobs and processes on it.

    If the driver does not answer, return ``known`` without processes. The list is ``None`` if no lease shows another
    job and the driver does not show the processes.
    """
    devices = allocation.readings.take_outside(_DEADLINE_S).devices
    device = by_uuid(devices).get(known.uuid, replace(known, compute_processes=None))
    claims: Sequence[Claim] = ()
    with suppress(lease.LeaseUnavailable):
        holders = lease.snapshot(lease.find_folder(allocation.environ)).holders
        processes = lease.processes_of(holders, compute_pids(devices) - {os.getpid()})
        claims = claims_by_gpu(jobs_of(holders, processes, devices, unix_s())).get(device.uuid, ())
    # In a container the driver may list this process under another pid, or not at all.
    is_certain = device.compute_processes is not None and (os.getpid() in bytes_by_pid(device) or not has_context)
    return device, _others(device, claims, is_certain=is_certain)


def _others(device: Device, claims: Sequence[Claim], *, is_certain: bool) -> list[Neighbour] | None:
    """Return the other jobs and processes with memory on the GPU, the largest first; ``None`` if unknown."""
    used = bytes_by_pid(device)
    found = []
    for claim in claims:
        used_bytes = sum(used.get(pid, 0) for pid in set(claim.pids))
        found.append(Neighbour(used_bytes, claim.uid, claim.pids[0] if claim.pids else None, claim.script))
    if is_certain:
        for process in unmanaged_processes(device, claims, os.getpid()):
            found.append(Neighbour(process.memory_used_bytes or 0, owner(process.pid), process.pid))
        if device.unlisted_bytes:
            found.append(Neighbour(device.unlisted_bytes))
    return sorted(found, key=lambda each: -each.used_bytes) if found or is_certain else None


def _own_part(framework: Framework, usable_bytes: int) -> Cap:
    """Return the cap of a framework that is alone on the GPU: its default share of the memory, or all memory."""
    if usable_bytes and framework.default_share < 1:
        return Cap(usable_bytes, CapCause.DEFAULT, framework.NAME)
    return Cap(usable_bytes, CapCause.WHOLE)


def _cap(
    error: OutOfMemory, request: SelectionRequest, assignment: Assignment, ordinal: int, device: Device
) -> Cap | None:
    demand = request.script_demand
    caps = assignment.caps
    parts = assignment.logical_gpus
    if demand is not None:
        caps = assignment.ceilings
        parts = 1
    cap = caps.get(ordinal)
    most = assignment.totals.get(ordinal, 0) if cap is None else cap.bytes * parts
    # The number in the error is the limit that the script or autogpu set last, rounded by the framework. It is the
    # script's only if it is clearly lower than autogpu's.
    allowed = error.allowed_bytes or (demand.on(device) - demand.context_bytes if demand else 0)
    if allowed and (not most or allowed < 0.98 * most):
        return Cap(allowed, CapCause.SCRIPT)
    return None if cap is None else replace(cap, bytes=most)
