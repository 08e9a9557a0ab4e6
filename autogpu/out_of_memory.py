"""Find out why a process ran out of a GPU's memory, who else is on that GPU, and what avoids it here."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Iterable, Sequence

from autogpu import lease
from autogpu.devices.model import Device, by_uuid
from autogpu.errors import AutoGpuError
from autogpu.frameworks.model import Assignment, OutOfMemory
from autogpu.frozen import replace
from autogpu.process import owner, unix_s
from autogpu.selection.jobs import bytes_by_pid, claims_by_gpu, compute_pids, jobs_of, unmanaged_processes
from autogpu.selection.memory import CONTEXT_BYTES, demand_told
from autogpu.selection.model import Cap, Claim, SelectionRequest
from autogpu.text import GIB, listed, printable, size
from autogpu.users import user_name
from autogpu.variables import PREFIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.allocation import Allocation
    from autogpu.frameworks.model import Framework

# A user waits for the prompt.
_DEADLINE_S = 3.0

# In one line with their names; `autogpu status` shows each.
_MOST = 3

_UNLIMITED = "nothing limits this process there"
_TOO_LARGE = "its model is larger than the GPU"

# By the cause of a cap, the reason in words, and what avoids it where that is always the same. {whose} is an engine, a
# framework, or where a limit was set.
_CAPS = {
    "share": ("because it shares the GPU", ""),
    "ranks": ("because ranks of its job share the GPU", "to have more: fewer ranks on each GPU"),
    "grant": ("the part that {whose} granted", "to have more: ask {whose} for a larger part of a GPU"),
    "limit": ("by memory.limit ({whose})", "to have more: AUTOGPU_LIMIT={larger}GiB"),
    "split": ("in its logical GPUs", "to have it in one piece: AUTOGPU_VIRTUAL_GPUS=1"),
    "script": ("by the script's own limit", "to have more: raise the limit in the script"),
    "default": (
        "the part that {whose} takes by itself",
        "to have more, and in one piece: AUTOGPU_LIMIT=95% AUTOGPU_GROWTH=false",
    ),
    "whole": ("", _TOO_LARGE),
}


def lines_of(
    error: OutOfMemory, framework: Framework, allocation: Allocation, request: SelectionRequest, assignment: Assignment
) -> list[str]:
    """At most three lines; none where the process's GPUs are unknown."""
    ordinal, decision = _ordinal(error, framework, request, assignment), allocation.decision
    known = decision.at([ordinal]) if decision else []
    if decision is None or not known:
        return []
    device, others = _now(allocation, known[0], has_context=ordinal in allocation.cuda.ordinals_in_use())
    cap = _cap(error, request, assignment, ordinal, known[0])
    if cap is None and others == []:
        usable = assignment.usable.get(ordinal, 0)
        cap = Cap(usable, f"default {framework.NAME}" if usable and framework.DEFAULT_SHARE < 1 else "whole")
    held, used = bytes_by_pid(device).get(os.getpid(), 0), framework.peak_bytes()
    had = used + CONTEXT_BYTES if used else held
    needed = had + error.asked_bytes if had else 0
    reason, remedy = _of_cap(cap, needed, limit=str(allocation.resolved.settings["memory.limit"].origin))
    remedy = _remedy(remedy or decision.remedy, needed, device, cap, allocation, request)
    gpu = f"GPU {device.label}" + (f" ({size(device.memory_total_bytes)})" if device.memory_total_bytes else "")
    return [
        f"out of memory on {gpu}: {reason}{_had(held, error.asked_bytes)}",
        *_there(others or ()),
        _unlocked(remedy, request.policy.locked),
    ]


def _ordinal(error: OutOfMemory, framework: Framework, request: SelectionRequest, assignment: Assignment) -> int:
    # As CUDA counts, and not those alone that it was assigned.
    if framework.TAKES_FIRST_GPUS:
        return error.ordinal
    place, ordinals = error.ordinal // assignment.logical_gpus, assignment.ordinals or tuple(request.named or ())
    return ordinals[min(place, len(ordinals) - 1)] if ordinals else place


def _now(allocation: Allocation, known: Device, *, has_context: bool) -> tuple[Device, list[tuple[str, int]] | None]:
    """A GPU at this moment by the driver, which may not answer, and who else is there, by the leases as well."""
    devices = allocation.readings.take_outside(_DEADLINE_S).devices
    device = by_uuid(devices).get(known.uuid, replace(known, compute_processes=None))
    claims: Sequence[Claim] = ()
    with suppress(AutoGpuError):
        holders = lease.snapshot(lease.find_folder(allocation.environ)).holders
        processes = lease.processes_of(holders, compute_pids(devices) - {os.getpid()})
        claims = claims_by_gpu(jobs_of(holders, processes, devices, unix_s())).get(device.uuid, ())
    # In a container the driver may list this process under another number, or not at all.
    is_certain = device.compute_processes is not None and (os.getpid() in bytes_by_pid(device) or not has_context)
    return device, _others(device, claims, is_certain=is_certain)


def _others(device: Device, claims: Sequence[Claim], *, is_certain: bool) -> list[tuple[str, int]] | None:
    """Who else has a part of the GPU, and how much each uses, the largest first; ``None`` where that is unknown."""
    used, found = bytes_by_pid(device), []
    for claim in claims:
        pid = f" (pid {claim.pids[0]})" if claim.pids else ""
        name = f"{user_name(claim.uid)}'s {printable(claim.script, 80) or 'job'}{pid}"
        found.append((name, sum(used.get(pid, 0) for pid in set(claim.pids))))
    for process in unmanaged_processes(device, claims, os.getpid()) if is_certain else ():
        uid = owner(process.pid)
        user = "" if uid is None else f" of {user_name(uid)}"
        found.append((f"pid {process.pid}{user}", process.memory_used_bytes or 0))
    if is_certain and device.unlisted_bytes:
        found.append(("processes that the driver does not show", device.unlisted_bytes))
    return sorted(found, key=lambda each: -each[1]) if found or is_certain else None


def _cap(
    error: OutOfMemory, request: SelectionRequest, assignment: Assignment, ordinal: int, device: Device
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
    return None if cap is None else Cap(most, cap.cause)


def _of_cap(cap: Cap | None, needed_bytes: int, *, limit: str) -> tuple[str, str]:
    """The reason in words, and what avoids it where that is known by the cause."""
    if cap is None:
        return _UNLIMITED, ""
    cause, _, whose = cap.cause.partition(" ")
    # Never one that is in force.
    names = {"whose": whose or limit, "larger": max(-(-needed_bytes // GIB), cap // GIB + 1)}
    reason, remedy = (printable(each.format(**names)) for each in _CAPS.get(cause, _CAPS["share"]))
    return f"this process may take {size(cap)} there, {reason}" if reason else _UNLIMITED, remedy


def _remedy(
    known: str, needed_bytes: int, device: Device, cap: Cap | None, allocation: Allocation, request: SelectionRequest
) -> str:
    """What avoids it: what is ``known`` by the cap or the decision, else what the process needs."""
    total_bytes = device.memory_total_bytes or sys.maxsize
    if needed_bytes > total_bytes:
        return _TOO_LARGE
    if known:
        return known
    is_child = allocation.taken is not None and allocation.taken.is_parents
    # A child has what its job has, and who was told which GPUs to have is put on no other. And no word for a need that
    # is claimed already.
    is_told = is_child if cap is None else request.names_cards
    if is_told or needed_bytes <= (demand_told(request).bytes or 0):
        return "`autogpu status` shows who is there, and which GPU has room"
    gib = -(-needed_bytes // GIB)
    if gib * GIB > total_bytes:  # no GPU of that kind has so much
        return "to get a GPU of its own: AUTOGPU_BUSY=wait"
    return f"to say what it needs at least: AUTOGPU_NEED={gib}GiB"


def _had(held_bytes: int, asked_bytes: int) -> str:
    had = [f"it had {size(held_bytes)} with its CUDA context"] if held_bytes else []
    had += [f"it asked for {size(asked_bytes)} more"] if asked_bytes else []
    return f"; {listed(had)}" if had else ""


def _there(others: Sequence[tuple[str, int]]) -> list[str]:
    named = [f"{who}, {size(used)}" if used else who for who, used in others]
    more = [f"{len(named) - _MOST} more"] if len(named) > _MOST else []
    return ["also there: " + "; ".join(named[:_MOST] + more)] if named else []


def _unlocked(remedy: str, locked: Iterable[str]) -> str:
    key = next((key for key in sorted(locked) if f"{PREFIX}{key.rpartition('.')[2].upper()}=" in remedy), "")
    return f"{key} is locked on this host: ask who administers it" if key else remedy
