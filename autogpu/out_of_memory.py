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
from autogpu.selection.occupancy import bytes_by_pid, compute_pids, room_bytes, unlisted_bytes, unmanaged_processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, Sequence

    from autogpu.allocation import Allocation
    from autogpu.devices.model import Device, Inventory
    from autogpu.frameworks.base import Assignment
    from autogpu.frameworks.memory_errors import OutOfMemory
    from autogpu.selection.model import Claim, Decision, SelectionRequest

# Somebody waits for their prompt.
_DEADLINE_S = 3.0


def lines_of(
    error: OutOfMemory, allocation: Allocation, request: SelectionRequest, assignment: Assignment, *, by_cuda: bool
) -> list[str]:
    """At most three lines; none where the process's GPUs are unknown.

    Args:
        request: By which the framework got its GPUs.
        by_cuda: The framework counts its GPUs as CUDA does, and not those alone that it was assigned.
    """
    decision, parts = allocation.decision, assignment.logical_gpus
    ordinal = error.ordinal if by_cuda else _ordinal(error.ordinal // parts, assignment, request)
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
    cap, is_scripts = _cap(error, request, assignment, ordinal, known)
    cause, source = ("script", "") if is_scripts else _cause(cap, allocation, decision, request, known, parts)
    shortage = Shortage(
        device.label,
        device.memory_total_bytes,
        held_bytes=held,
        asked_bytes=error.asked_bytes,
        cap_bytes=cap // parts if cap is not None and cause == "split" else cap,
        cause=cause,
        source=source,
        others=_others(device, claims.get(device.uuid, ()), lists_processes=is_certain),
        is_certain=is_certain,
        rooms=_rooms([now[each.uuid] for each in visible if each and each.uuid in now and each is not known], claims),
        waits=allocation.policy.busy == "wait",
        remedy=decision.remedy,
    )
    return advice(shortage)


def _ordinal(place: int, assignment: Assignment, request: SelectionRequest) -> int:
    """Of CUDA, for a GPU that a framework counts among those alone that it was assigned."""
    ordinals = assignment.ordinals or tuple(request.named or ())
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
    hidden = unlisted_bytes(device) if lists_processes else 0
    for process in unmanaged_processes(device, claims, os.getpid()) if lists_processes else ():
        uid = owner(process.pid)
        name = f"pid {process.pid}" if uid is None else f"{_whose(uid)} process {process.pid}"
        found.append((name, process.memory_used_bytes or 0))
    if hidden:
        found.append(("processes that the driver does not show", hidden))
    return tuple(sorted(found, key=lambda each: -each[1]))


def _whose(uid: int) -> str:
    return "your" if uid == os.getuid() else f"{user_name(uid)}'s"


def _rooms(devices: Sequence[Device], claims: Mapping[str, Sequence[Claim]]) -> tuple[tuple[str, int], ...]:
    rooms = [(device, room_bytes(device, None, claims.get(device.uuid, ()))) for device in devices]
    return tuple((device.label, room) for device, room in rooms if room is not None and not device.mig_enabled)


def _cap(
    error: OutOfMemory, request: SelectionRequest, assignment: Assignment, ordinal: int, device: Device
) -> tuple[int | None, bool]:
    """The most that the process might allocate on a GPU, and whether the script itself said so."""
    cap, is_scripts = assignment.caps.get(ordinal), False
    if request.script_demand is not None:
        said = request.script_demand.on(device) - request.script_demand.context_bytes
        cap = min(said, assignment.ceilings.get(ordinal, said))
        is_scripts = cap == said
    elif cap is not None:
        cap *= assignment.logical_gpus
    # The script may have set a limit since the start; the text is rounded.
    most = assignment.totals.get(ordinal, 0) if cap is None else cap
    return (error.allowed_bytes, True) if 0 < error.allowed_bytes < 0.98 * most else (cap, is_scripts)


def _cause(
    cap: int | None, allocation: Allocation, decision: Decision, request: SelectionRequest, device: Device, parts: int
) -> tuple[str, str]:
    """By whose word there is a cap that is not the script's, and where that was said."""
    if cap is None:
        return "", ""
    policy, grant = allocation.policy, allocation.grant
    granted, shared = decision.granted.get(device.uuid, -1), decision.soft_caps.get(device.uuid, -1)
    if 0 <= granted - cap < parts:  # it is divided among logical GPUs
        return "grant", grant.engine or "the engine"
    if 0 <= shared - cap < parts:
        has_size = request.script_demand or policy.need_bytes or policy.limit or grant.fraction
        return "ranks" if grant.rank else "share-size" if has_size else "share", ""
    if policy.limit is not None:
        return "limit", str(allocation.resolved.settings["memory.limit"].origin)
    return "split", ""
