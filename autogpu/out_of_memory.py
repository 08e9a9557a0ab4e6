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
    from autogpu.selection.model import Claim, SelectionRequest

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
    decision, ordinal = allocation.decision, error.ordinal
    ordinals = assignment.ordinals or tuple(request.chosen or ())
    if not by_cuda and ordinals:
        # Each is so many logical GPUs, counted one after the other.
        ordinal = ordinals[min(ordinal // assignment.logical_gpus, len(ordinals) - 1)]
    visible = decision.visible if decision else ()
    known = visible[ordinal] if ordinal < len(visible) else None
    if decision is None or known is None:
        return []
    inventory = allocation.readings.take_outside(_DEADLINE_S)
    now = by_uuid(inventory.devices if inventory else ())
    device, claims = now.get(known.uuid), _claims(allocation, inventory)
    cap, cause, source = _cap(error, allocation, request, assignment, ordinal)
    others = [now[each.uuid] for each in visible if each and each.uuid in now and each is not known]
    shortage = Shortage(
        known.label,
        known.memory_total_bytes,
        held_bytes=bytes_by_pid(device).get(os.getpid(), 0) if device else 0,
        asked_bytes=error.asked_bytes,
        cap_bytes=cap,
        cause=cause,
        source=source,
        others=_others(device, claims.get(device.uuid, ())) if device else (),
        is_certain=device is not None and device.compute_processes is not None,
        rooms=_rooms(others, claims),
        waits=allocation.policy.busy == "wait",
        remedy=decision.remedy,
    )
    return advice(shortage)


def _claims(allocation: Allocation, inventory: Inventory | None) -> Mapping[str, Sequence[Claim]]:
    """By UUID, those of other jobs."""
    try:
        holders = lease.snapshot(lease.find_folder(allocation.environ)).holders
    except AutoGpuError:
        return {}
    processes = lease.processes_of(holders, compute_pids(inventory) - {os.getpid()})
    return claims_by_gpu(jobs_of(holders, processes, inventory, unix_s()))


def _others(device: Device, claims: Sequence[Claim]) -> tuple[tuple[str, int], ...]:
    """Who else uses the GPU or claims a part of it, and how much each uses; the largest first."""
    used = bytes_by_pid(device)
    found = []
    for claim in claims:
        pid = f" (pid {claim.pids[0]})" if claim.pids else ""
        name = f"{_whose(claim.uid)} {printable(claim.script, 80) or 'job'}{pid}"
        found.append((name, sum(used.get(pid, 0) for pid in set(claim.pids))))
    for process in unmanaged_processes(device, claims, os.getpid()):
        uid = owner(process.pid)
        name = f"pid {process.pid}" if uid is None else f"{_whose(uid)} process {process.pid}"
        found.append((name, process.memory_used_bytes or 0))
    hidden = unlisted_bytes(device)
    if hidden:
        found.append(("processes that the driver does not show", hidden))
    return tuple(sorted(found, key=lambda each: -each[1]))


def _whose(uid: int) -> str:
    return "your" if uid == os.getuid() else f"{user_name(uid)}'s"


def _rooms(devices: Sequence[Device], claims: Mapping[str, Sequence[Claim]]) -> tuple[tuple[str, int], ...]:
    rooms = [(device, room_bytes(device, None, claims.get(device.uuid, ()))) for device in devices]
    return tuple((device.label, room) for device, room in rooms if room is not None and not device.mig_enabled)


def _cap(
    error: OutOfMemory, allocation: Allocation, request: SelectionRequest, assignment: Assignment, ordinal: int
) -> tuple[int | None, str, str]:
    """The most that the process might allocate on a GPU, by whose word, and where that was said."""
    policy, decision = allocation.policy, allocation.decision
    device = decision.visible[ordinal] if decision else None
    cap, by_script = assignment.caps.get(ordinal), request.script_demand
    if by_script is not None and device is not None:
        most, cap = by_script.on(device) - by_script.context_bytes, assignment.ceilings.get(ordinal)
        if cap is None or most < cap:
            return most, "script", ""
    elif cap is not None:
        cap *= assignment.logical_gpus
    # It may have set a limit since its start; the text is rounded.
    most = assignment.totals.get(ordinal, 0) if cap is None else cap
    if 0 < error.allowed_bytes < 0.98 * most:
        return error.allowed_bytes, "script", ""
    if cap is None or decision is None or device is None:
        return None, "", ""
    granted = decision.granted.get(device.uuid)
    if granted is not None and granted - cap < assignment.logical_gpus:
        return cap, "grant", allocation.grant.engine or "the parent job"
    if policy.limit is not None and by_script is None:
        return cap, "limit", str(allocation.resolved.settings["memory.limit"].origin)
    if device.uuid in decision.soft_caps:
        return cap, "share-script" if by_script else "share", ""
    return cap // assignment.logical_gpus, "split", ""
