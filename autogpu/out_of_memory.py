"""Find out why a process ran out of a GPU's memory, who else is on that GPU, and what avoids it here."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Iterable, Mapping, Sequence

from autogpu import lease
from autogpu.devices.model import Device, by_uuid
from autogpu.errors import AutoGpuError
from autogpu.frameworks.model import Assignment, OutOfMemory
from autogpu.frozen import Value
from autogpu.process import owner, unix_s
from autogpu.reporting.text import GIB, listed, printable, size, user_name
from autogpu.selection.jobs import bytes_by_pid, claims_by_gpu, compute_pids, jobs_of, spare_bytes, unmanaged_processes
from autogpu.selection.memory import CONTEXT_BYTES, demand_told
from autogpu.selection.model import Cap, Claim, SelectionRequest
from autogpu.variables import PREFIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.allocation import Allocation
    from autogpu.frameworks.model import Framework

# A user waits for the prompt.
_DEADLINE_S = 3.0
_UNLISTED = "to have another GPU: leave CUDA_VISIBLE_DEVICES unset"

# In one line with their names; `autogpu status` shows each.
_MOST = 3

# By the cause of a cap, the reason in words, and what avoids it where that is always the same. {whose} is an engine, a
# framework, or where a limit was set.
_CAPS = {
    "share": ("because it shares the GPU", ""),
    "ranks": ("because ranks of its job share the GPU", "to have more: fewer ranks on each GPU"),
    "grant": ("the part that {whose} granted", "to have more: ask {whose} for a larger part of a GPU"),
    "limit": ("by memory.limit ({whose})", "to have more: AUTOGPU_LIMIT={larger}"),
    "split": ("in each of its logical GPUs", "to have it in one piece: AUTOGPU_VIRTUAL_GPUS=1"),
    "script": ("by the script's own limit", "to have more: raise the limit in the script"),
    "default": ("the part that {whose} takes by itself", "to have more: AUTOGPU_LIMIT=95%"),
}
_OR = "; or "
_TOO_LARGE = "its model is larger than the GPU"
_IN_ONE_PIECE = "its memory may be in pieces; to have it in one: AUTOGPU_GROWTH=false"
_OF_ONE_JOB = "the processes of one job share its GPU: use it in fewer of them, or give memory back"


def lines_of(
    error: OutOfMemory, framework: Framework, allocation: Allocation, request: SelectionRequest, assignment: Assignment
) -> list[str]:
    """At most three lines; none where the process's GPUs are unknown."""
    ordinal, decision = _ordinal(error, framework, request, assignment), allocation.decision
    known = dict(enumerate(decision.visible)).get(ordinal) if decision else None
    if decision is None or known is None:
        return []
    now = _Now(allocation, known, has_context=ordinal in allocation.cuda.ordinals_in_use())
    is_child = allocation.taken is not None and allocation.taken.is_parents
    keeps, usable = assignment.growth and not framework.TAKES_FIRST_GPUS, assignment.usable.get(ordinal)
    shortage = Shortage(
        now.device,
        request,
        held_bytes=now.held_bytes,
        used_bytes=framework.peak_bytes(),
        asked_bytes=error.asked_bytes,
        cap=_cap(error, request, assignment, ordinal, known, str(allocation.resolved.settings["memory.limit"].origin)),
        others=now.others(),
        own_part=Cap(usable, f"default {framework.NAME}") if keeps and usable else None,
        elsewhere=() if is_child else now.elsewhere(decision.visible),
        is_child=is_child,
        remedy=decision.remedy
        or (_UNLISTED if len(now.devices) > len(decision.visible) and _is_listed_alone(request) else ""),
    )
    return advice(shortage)


def _ordinal(error: OutOfMemory, framework: Framework, request: SelectionRequest, assignment: Assignment) -> int:
    # As CUDA counts, and not those alone that it was assigned.
    if framework.TAKES_FIRST_GPUS:
        return error.ordinal
    place, ordinals = error.ordinal // assignment.logical_gpus, assignment.ordinals or tuple(request.named or ())
    return ordinals[min(place, len(ordinals) - 1)] if ordinals else place


class _Now:
    """A GPU at this moment, by the driver, which may not answer, and the leases of other jobs."""

    def __init__(self, allocation: Allocation, known: Device, *, has_context: bool) -> None:
        devices = allocation.readings.take_outside(_DEADLINE_S).devices
        self.devices = by_uuid(devices)
        self.device = self.devices.get(known.uuid, known)
        self.held_bytes = bytes_by_pid(self.device).get(os.getpid(), 0) if known.uuid in self.devices else 0
        # In a container it may list this process under another number, or not at all.
        self._is_certain = known.uuid in self.devices and (self.held_bytes > 0 or not has_context)
        self._claims: Mapping[str, Sequence[Claim]] = {}
        with suppress(AutoGpuError):
            holders = lease.snapshot(lease.find_folder(allocation.environ)).holders
            processes = lease.processes_of(holders, compute_pids(devices) - {os.getpid()})
            self._claims = claims_by_gpu(jobs_of(holders, processes, devices, unix_s()))

    def others(self) -> Sequence[tuple[str, int]] | None:
        """Who else uses the GPU or claims a part of it, and how much each uses, the largest first."""
        device, claims = self.device, self._claims.get(self.device.uuid, ())
        used, found = bytes_by_pid(device), []
        for claim in claims:
            pid = f" (pid {claim.pids[0]})" if claim.pids else ""
            name = f"{_whose(claim.uid)} {printable(claim.script, 80) or 'job'}{pid}"
            found.append((name, sum(used.get(pid, 0) for pid in set(claim.pids))))
        if self._is_certain:
            for process in unmanaged_processes(device, claims, os.getpid()):
                uid = owner(process.pid)
                name = f"pid {process.pid}" if uid is None else f"{_whose(uid)} process {process.pid}"
                found.append((name, process.memory_used_bytes or 0))
            hidden = device.unlisted_bytes
            found += [("processes that the driver does not show", hidden)] if hidden else []
        return sorted(found, key=lambda each: -each[1]) if found or self._is_certain else None

    def elsewhere(self, visible: Sequence[Device | None]) -> Sequence[tuple[str, int]]:
        found = [self.devices[each.uuid] for each in visible if each and each.uuid in self.devices]
        whole = [each for each in found if each.uuid != self.device.uuid and not each.mig_enabled]
        spare = [(each.label, spare_bytes(each, None, self._claims.get(each.uuid, ()))) for each in whole]
        return [(label, size) for label, size in spare if size is not None]


def _whose(uid: int) -> str:
    return "your" if uid == os.getuid() else f"{user_name(uid)}'s"


def _is_listed_alone(request: SelectionRequest) -> bool:
    """The shell's list has no other GPU to wait for."""
    spec = request.visible_spec
    return spec.value is not None and not spec.is_scripts and not request.grant.engine and request.joins_at_once


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


class Shortage(Value):
    """A GPU and a process at the moment at which memory ran out; numbers are 0 where they are unknown.

    Attributes:
        held_bytes: By the driver.
        used_bytes: By the framework.
        asked_bytes: What the framework could not allocate.
        cap: The most that it might allocate; ``None`` where nothing limited it.
        others: Who else is there, in words, with what they use; ``None`` where that is unknown.
        own_part: The most that a framework takes by itself, if it keeps memory, with gaps that may be too small.
        elsewhere: Of each other GPU that the process could have, its label, and what is neither used nor claimed there.
        is_child: It has what its job has, whatever else is free.
        remedy: How to have an idle GPU, where the script named a busy one.
    """

    device: Device
    request: SelectionRequest
    held_bytes: int = 0
    used_bytes: int = 0
    asked_bytes: int = 0
    cap: Cap | None = None
    others: Sequence[tuple[str, int]] | None = ()
    own_part: Cap | None = None
    elsewhere: Sequence[tuple[str, int]] = ()
    is_child: bool = False
    remedy: str = ""

    @property
    def is_alone(self) -> bool:
        return self.others is not None and not self.others

    @property
    def needed_bytes(self) -> int:
        """It used and asked for so much, with its CUDA context; 0 where that is unknown."""
        had = self.used_bytes + CONTEXT_BYTES if self.used_bytes else self.held_bytes
        return had + self.asked_bytes if had else 0

    @property
    def is_too_large(self) -> bool:
        return self.needed_bytes > (self.device.memory_total_bytes or self.needed_bytes)


def advice(shortage: Shortage) -> list[str]:
    total_bytes = shortage.device.memory_total_bytes
    gpu = f"GPU {shortage.device.label}" + (f" ({size(total_bytes)})" if total_bytes else "")
    cap, own, used = shortage.cap, shortage.own_part, shortage.used_bytes
    if cap is None and shortage.is_alone:
        if own is None or (used and shortage.is_too_large):
            return [f"out of memory on {gpu}: this process had all of it and no limit: {_TOO_LARGE}"]
        cap = own if used and used + shortage.asked_bytes > own else None
    reason, remedy = _of_cap(cap, shortage)
    named = [f"{who}, {size(used)}" if used else who for who, used in shortage.others or ()]
    more = [f"{len(named) - _MOST} more"] if len(named) > _MOST else []
    there = ["also there: " + "; ".join(named[:_MOST] + more)] if named else []
    last = _open_to_all(remedy or _remedy(shortage), shortage.request.policy.locked)
    return [f"out of memory on {gpu}: {reason}{_had(cap, shortage)}", *there, last]


def _open_to_all(remedy: str, locked: Iterable[str]) -> str:
    """The ways that set no locked key, or whom to ask where each does."""
    ways = remedy.split(_OR)
    for key in sorted(locked):
        left = [way for way in ways if f"{PREFIX}{key.rpartition('.')[2].upper()}=" not in way]
        if not left:
            return f"{key} is locked on this host: ask who administers it"
        ways = left
    return _OR.join(ways)


def _of_cap(cap: Cap | None, shortage: Shortage) -> tuple[str, str]:
    """The reason in words, and what avoids it where that is known by the cause."""
    if cap is None:
        return "nothing limits this process there", _OF_ONE_JOB if shortage.is_child and shortage.others else ""
    cause, _, whose = cap.cause.partition(" ")
    # Never one that is in force.
    gib = max(-(-shortage.needed_bytes // GIB), cap // GIB + 1)
    larger = f"{gib}GiB" if gib * GIB <= (shortage.device.memory_total_bytes or 0) else "100%"
    reason, remedy = (printable(each.format(whose=whose, larger=larger)) for each in _CAPS.get(cause, _CAPS["share"]))
    return f"this process may take {size(cap)} there, {reason}", "" if shortage.is_too_large else remedy


def _had(cap: Cap | None, shortage: Shortage) -> str:
    held, asked = shortage.held_bytes, shortage.asked_bytes
    had = [f"it had {size(held)}{' with its CUDA context' if held > (cap or held) else ''}"] if held else []
    had += [f"it asked for {size(asked)} more"] if asked else []
    return f"; {listed(had)}" if had else ""


def _remedy(shortage: Shortage) -> str:
    request, needed = shortage.request, shortage.needed_bytes
    label, spare = max(shortage.elsewhere, key=lambda each: each[1], default=("", 0))
    # No word for one that is claimed already.
    gib = -(-needed // GIB) if needed > (demand_told(request).bytes or 0) else 0
    is_elsewhere = spare >= gib * GIB > 0
    if shortage.is_too_large and not is_elsewhere:
        return _TOO_LARGE
    if shortage.remedy:
        return shortage.remedy
    if shortage.is_alone:
        return _IN_ONE_PIECE if shortage.cap is None else "no other job is on it any more: start it again"
    if is_elsewhere:
        return f"GPU {label} has {size(spare)} free now: AUTOGPU_NEED={gib}GiB gets it"
    # One that no cap was put on had joined nobody: the others came later.
    would_wait = shortage.cap is not None and request.policy.busy != "wait" and not request.joins_at_once
    ways = ["to get a GPU of its own: AUTOGPU_BUSY=wait"] if would_wait else []
    ways += [f"to say what it needs at least: AUTOGPU_NEED={gib}GiB"] if gib else []
    return _OR.join(ways) or "`autogpu status` shows who is there"
