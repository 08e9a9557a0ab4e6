"""Find out why a process ran out of a GPU's memory, and who else is on that GPU at this moment."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Mapping, Sequence

from autogpu import lease
from autogpu.devices.model import Device, by_uuid
from autogpu.errors import AutoGpuError
from autogpu.frameworks.base import Assignment, OutOfMemory
from autogpu.process import owner, unix_s
from autogpu.reporting.advice import Shortage, advice
from autogpu.reporting.text import printable, user_name
from autogpu.selection.jobs import claims_by_gpu, jobs_of
from autogpu.selection.memory import demand_told
from autogpu.selection.model import Cap, Claim, SelectionRequest
from autogpu.selection.occupancy import bytes_by_pid, compute_pids, spare_bytes, unmanaged_processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.allocation import Allocation
    from autogpu.frameworks.base import Framework

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
    ordinal, decision = _ordinal(error, framework, request, assignment), allocation.decision
    known = dict(enumerate(decision.visible)).get(ordinal) if decision else None
    if decision is None or known is None:
        return []
    now = _Now(allocation, known, has_context=ordinal in allocation.cuda.ordinals_in_use())
    is_child = allocation.taken is not None and allocation.taken.is_parents
    keeps, usable = assignment.growth and not framework.TAKES_FIRST_GPUS, assignment.usable.get(ordinal)
    shortage = Shortage(
        now.device.label,
        now.device.memory_total_bytes,
        held_bytes=now.held_bytes,
        used_bytes=framework.peak_bytes(),
        asked_bytes=error.asked_bytes,
        cap=_cap(error, request, assignment, ordinal, known, str(allocation.resolved.settings["memory.limit"].origin)),
        others=now.others(),
        own_part=Cap(usable, f"default {framework.NAME}") if keeps and usable else None,
        elsewhere=() if is_child else now.elsewhere(decision.visible),
        waits=request.policy.busy == "wait" or request.joins_at_once,
        claimed_bytes=demand_told(request).bytes or 0,
        is_child=is_child,
        remedy=decision.remedy
        or (_UNLISTED if len(now.devices) > len(decision.visible) and _is_listed_alone(request) else ""),
        locked=request.policy.locked,
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
        inventory = allocation.readings.take_outside(_DEADLINE_S)
        self.devices = by_uuid(inventory.devices if inventory else ())
        self.device = self.devices.get(known.uuid, known)
        self.held_bytes = bytes_by_pid(self.device).get(os.getpid(), 0) if known.uuid in self.devices else 0
        # In a container it may list this process under another number, or not at all.
        self._is_certain = known.uuid in self.devices and (self.held_bytes > 0 or not has_context)
        self._claims: Mapping[str, Sequence[Claim]] = {}
        with suppress(AutoGpuError):
            holders = lease.snapshot(lease.find_folder(allocation.environ)).holders
            processes = lease.processes_of(holders, compute_pids(inventory) - {os.getpid()})
            self._claims = claims_by_gpu(jobs_of(holders, processes, inventory, unix_s()))

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
        """Of each other GPU that the process could have, its label, and what is neither used nor claimed there."""
        found = [self.devices[each.uuid] for each in visible if each and each.uuid in self.devices]
        whole = [each for each in found if each.uuid != self.device.uuid and not each.mig_enabled]
        spare = [(each.label, spare_bytes(each, None, self._claims.get(each.uuid, ()))) for each in whole]
        return [(label, size) for label, size in spare if size is not None]


def _whose(uid: int) -> str:
    return "your" if uid == os.getuid() else f"{user_name(uid)}'s"


def _is_listed_alone(request: SelectionRequest) -> bool:
    """The shell's list has no other GPU to wait for."""
    spec = request.visible_spec
    is_shells = spec.value is not None and not spec.is_scripts and not request.grant.engine
    return is_shells and request.joins_at_once


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
