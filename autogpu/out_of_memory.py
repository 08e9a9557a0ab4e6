"""Find out why a process ran out of a GPU's memory, and who else is on that GPU at this moment."""

from __future__ import annotations

import os

from autogpu import lease
from autogpu.devices.model import by_uuid
from autogpu.errors import AutoGpuError
from autogpu.process import owner, unix_s
from autogpu.reporting.advice import Shortage, advice
from autogpu.reporting.text import printable, user_name
from autogpu.selection.jobs import claims_by_gpu, jobs_of
from autogpu.selection.model import Cap
from autogpu.selection.occupancy import bytes_by_pid, compute_pids, spare_bytes, unmanaged_processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, Sequence

    from autogpu.allocation import Allocation
    from autogpu.devices.model import Device, Inventory
    from autogpu.frameworks.base import Assignment, Framework, OutOfMemory
    from autogpu.selection.model import Claim, SelectionRequest

# A user waits for the prompt.
_DEADLINE_S = 3.0
_UNLISTED = "to have another GPU: leave CUDA_VISIBLE_DEVICES unset"


def lines_of(
    error: OutOfMemory, framework: Framework, allocation: Allocation, request: SelectionRequest, assignment: Assignment
) -> list[str]:
    """At most three lines; none where the process's GPUs are unknown.

    Args:
        request: By which the framework got its GPUs.
    """
    decision, ordinal = allocation.decision, _ordinal(error, request, assignment, by_cuda=framework.TAKES_FIRST_GPUS)
    visible = decision.visible if decision else ()
    known = visible[ordinal] if ordinal < len(visible) else None
    if decision is None or known is None:
        return []
    inventory = allocation.readings.take_outside(_DEADLINE_S)
    now, claims = by_uuid(inventory.devices if inventory else ()), _claims(allocation, inventory)
    device = now.get(known.uuid, known)
    held = bytes_by_pid(device).get(os.getpid(), 0) if known.uuid in now else 0
    # In a container the driver may list this process under another number, or not at all.
    is_certain = known.uuid in now and (held > 0 or ordinal not in allocation.cuda.ordinals_in_use())
    is_child = allocation.taken is not None and allocation.taken.is_parents
    others = [now[each.uuid] for each in visible if each and each is not known and each.uuid in now]
    need = request.policy.need_bytes
    shortage = Shortage(
        device.label,
        device.memory_total_bytes,
        held_bytes=held,
        used_bytes=framework.peak_bytes(),
        asked_bytes=error.asked_bytes,
        cap=_cap(error, request, assignment, ordinal, known, str(allocation.resolved.settings["memory.limit"].origin)),
        others=_others(device, claims.get(device.uuid, ()), lists_processes=is_certain),
        is_certain=is_certain,
        own_part=_own_part(framework, assignment, ordinal),
        elsewhere=() if is_child else _elsewhere(others, claims),
        waits=request.policy.busy == "wait" or request.joins_at_once,
        claimed_bytes=need if isinstance(need, int) else 0,
        is_child=is_child,
        remedy=decision.remedy or (_UNLISTED if len(now) > len(visible) and _is_listed_alone(request) else ""),
        locked=request.policy.locked,
    )
    return advice(shortage)


def _is_listed_alone(request: SelectionRequest) -> bool:
    """The shell's list has no other GPU to wait for."""
    spec = request.visible_spec
    is_shells = spec.value is not None and not spec.is_scripts and not request.grant.engine
    return is_shells and request.joins_at_once


def _ordinal(error: OutOfMemory, request: SelectionRequest, assignment: Assignment, *, by_cuda: bool) -> int:
    # As CUDA counts, and not those alone that it was assigned.
    if by_cuda:
        return error.ordinal
    place, ordinals = error.ordinal // assignment.logical_gpus, assignment.ordinals or tuple(request.named or ())
    return ordinals[min(place, len(ordinals) - 1)] if ordinals else place


def _claims(allocation: Allocation, inventory: Inventory | None) -> Mapping[str, Sequence[Claim]]:
    """By UUID, those of other jobs."""
    try:
        holders = lease.snapshot(lease.find_folder(allocation.environ)).holders
    except AutoGpuError:
        return {}
    processes = lease.processes_of(holders, compute_pids(inventory) - {os.getpid()})
    return claims_by_gpu(jobs_of(holders, processes, inventory, unix_s()))


def _others(device: Device, claims: Sequence[Claim], *, lists_processes: bool) -> tuple[tuple[str, int], ...]:
    """Who else uses the GPU or claims a part of it, and how much each uses; the largest first.

    Args:
        lists_processes: None that the driver lists without a claim is this one.
    """
    used = bytes_by_pid(device)
    found = []
    for claim in claims:
        pid = f" (pid {claim.pids[0]})" if claim.pids else ""
        name = f"{_whose(claim.uid)} {printable(claim.script, 80) or 'job'}{pid}"
        found.append((name, sum(used.get(pid, 0) for pid in set(claim.pids))))
    hidden = device.unlisted_bytes if lists_processes else 0
    for process in unmanaged_processes(device, claims, os.getpid()) if lists_processes else ():
        uid = owner(process.pid)
        name = f"pid {process.pid}" if uid is None else f"{_whose(uid)} process {process.pid}"
        found.append((name, process.memory_used_bytes or 0))
    if hidden:
        found.append(("processes that the driver does not show", hidden))
    return tuple(sorted(found, key=lambda each: -each[1]))


def _whose(uid: int) -> str:
    return "your" if uid == os.getuid() else f"{user_name(uid)}'s"


def _elsewhere(devices: Sequence[Device], claims: Mapping[str, Sequence[Claim]]) -> tuple[tuple[str, int], ...]:
    spare = [(device, spare_bytes(device, None, claims.get(device.uuid, ()))) for device in devices]
    return tuple((device.label, size) for device, size in spare if size is not None and not device.mig_enabled)


def _own_part(framework: Framework, assignment: Assignment, ordinal: int) -> Cap | None:
    usable = assignment.usable.get(ordinal)
    keeps = bool(assignment.growth) and not framework.TAKES_FIRST_GPUS
    return Cap(usable, f"default {framework.NAME}") if keeps and usable else None


def _cap(
    error: OutOfMemory, request: SelectionRequest, assignment: Assignment, ordinal: int, device: Device, limit: str
) -> Cap | None:
    """The most that the process might allocate on a GPU; ``None`` where nothing limits it."""
    demand, caps, parts = request.script_demand, assignment.caps, assignment.logical_gpus
    if demand is not None:
        caps, parts = assignment.ceilings, 1
    cap = caps.get(ordinal)
    most = assignment.totals.get(ordinal, 0) if cap is None else cap * parts
    # The error's own number is the last that the script has set, or a cap of ours, and rounded.
    said = error.allowed_bytes or (demand.on(device) - demand.context_bytes if demand else 0)
    if said and (not most or said < 0.98 * most):
        return Cap(said, "script")
    if cap is None or cap.cause == "split":
        return cap
    return Cap(most, f"limit {limit}" if cap.cause == "limit" else cap.cause)
