"""The step from a request to a lease: choose GPUs and claim them while no other process can, after any wait."""

from __future__ import annotations

import math
import os
import sys
import time
from contextlib import suppress
from typing import Callable, Iterable, Mapping, Sequence

from autogpu import lease
from autogpu.devices.model import NO_READING, Inventory
from autogpu.errors import raise_if_from_script, where_raised
from autogpu.frozen import Value, replace
from autogpu.lease import Fault, GaveUp, Holder, Lease, LeaseProblem, LeaseUnavailable, QueueState, Terms, Waiter
from autogpu.lease.queue import wait_for_lease
from autogpu.process import monotonic_s, unix_s, with_ancestors
from autogpu.selection.decide import decide, why_none
from autogpu.selection.decision import Decision, Verdict
from autogpu.selection.jobs import compute_pids
from autogpu.selection.members import (
    Family,
    by_scripts_list,
    decide_as_member,
    decide_beside,
    family_of,
    job_of_ranks,
    request_of_all,
)
from autogpu.selection.model import SelectionRequest

OnWait = Callable[[QueueState, Decision], None]


# How often a process that waits without a place in the queue looks for a GPU.
_UNCLAIMED_LOOK_S = 2.0

# GPUs that fail for so long count as gone. A process keeps its place in the queue during a shorter failure.
_GONE_S = 5.0

# A driver under load may be silent for seconds. After a minute the last reading is too old to decide by.
_SILENT_S = 60.0


class Holding(Value):
    """The decision of a process, and its lease, which other processes see.

    Attributes:
        lease: ``None`` if nothing is claimed. The lease of a rank covers the GPUs of all ranks of its job.
        problem: Why no lease was written, or why it was written without the mutex; ``None`` if there was no problem.
        is_parents: True if the claim is a part of the parent process's claim.
        is_listed: True if ``CUDA_VISIBLE_DEVICES`` lists the claimed GPUs first, so that CUDA counts them first.
    """

    decision: Decision
    lease: Lease | None = None
    problem: LeaseProblem | None = None
    is_parents: bool = False
    is_listed: bool = False

    @property
    def is_unclaimed(self) -> bool:
        """True if no lease could be written: other jobs don't see this one."""
        return self.problem is not None and self.lease is None


def is_sufficient(holding: Holding, selection: SelectionRequest, *, is_assigned: bool) -> bool:
    """True if the claim that the process holds covers what a framework requests.

    Args:
        is_assigned: True if another framework uses the GPUs already, so that they can't be exchanged.
    """
    if holding.lease is None:
        return is_assigned and selection.named is None
    uuids = selection.uuids or ()
    claimed = frozenset(holding.lease.claims)
    if uuids and claimed.issuperset(uuids):
        return True
    # The claim may date from the start of CUDA, when it was not known yet that the script names several GPUs.
    if not is_assigned and (selection.wanted.named > len(claimed) or not holding.is_listed):
        return False
    decided = [device.uuid for device in holding.decision.devices]
    return claimed.intersection(uuids).issuperset(decided if selection.named is None else selection.named_uuids)


def acquire(
    request: SelectionRequest,
    environ: Mapping[str, str],
    script: str,
    read: Callable[[], Inventory | None],
    on_wait: OnWait,
    above: Callable[[], Iterable[tuple[int, int]]] = with_ancestors,
) -> Holding:
    """Decide which GPUs the process takes and claim them.

    Args:
        environ: Its variables give the lease folder, and the parent's lease if there is one.
        script: Name of the running script, which other users can see.
        read: Takes a new reading of the driver.
        on_wait: Called after each look without a result, with the queue and the decision to wait.
        above: Yields (pid, start time) of this process and of its ancestors.

    Raises:
        GaveUp: No GPU became free in the time that the policy allows.
    """
    if why_none(request):
        return Holding(decide(request))
    attempt = _Acquisition(by_scripts_list(request), script, read, on_wait, above)
    try:
        return attempt.acquire(environ)
    except LeaseUnavailable as error:
        problem = error.problem
    except Exception as error:
        raise_if_from_script(error)
        if isinstance(error, GaveUp):
            raise
        problem = LeaseProblem(Fault.INTERNAL, error=f"{type(error).__name__} at {where_raised(error)}: {error}")
    # Without a lease the process still chooses GPUs, by the driver's readings and its policy.
    return attempt.go_unclaimed(problem)


class WaitReadings:
    """Chooses which readings a waiting process decides by: one failed reading must not end its wait."""

    def __init__(self) -> None:
        self._failing_s: float | None = None

    def should_use(self, inventory: Inventory | None, decision: Decision) -> bool:
        """True if the process should decide by ``inventory``, the newest reading; ``None`` stands for a silent driver.

        A reading with an awaited GPU always counts. A reading without one counts after 5 s of failures, and a silent
        driver counts after 60 s of failures.
        """
        awaited = {device.uuid for device in decision.ranking.suitable}
        now_s = monotonic_s()
        is_failure = inventory is None or awaited.isdisjoint(device.uuid for device in inventory.devices)
        self._failing_s = (self._failing_s or now_s) if is_failure else None
        patience_s = _SILENT_S if inventory is None else _GONE_S
        return self._failing_s is None or now_s - self._failing_s >= patience_s


class _Acquisition:
    """The attempt of one process to get GPUs, before it has any."""

    def __init__(
        self,
        request: SelectionRequest,
        script: str,
        read: Callable[[], Inventory | None],
        on_wait: OnWait,
        above: Callable[[], Iterable[tuple[int, int]]],
    ) -> None:
        self._request = request
        self._script = script
        self._read = read
        self._on_wait = on_wait
        self._above = above
        self._wait_begun_s: float | None = None
        self._readings = WaitReadings()
        self._processes = _process_table(request.inventory)
        self._folder: lease.Folder | None = None
        self._family: Family | None = None
        self._job = job_of_ranks(request)

    def acquire(self, environ: Mapping[str, str]) -> Holding:
        """Share the claim of the job that started this process, or else choose and claim, after a wait if necessary."""
        folder = self._folder = lease.find_folder(environ)
        holders = lease.snapshot(folder).holders if lease.is_marked(environ) else ()
        parent = lease.ancestor_lease(environ, holders, self._above()) if holders else None
        self._family = family_of(parent, holders, has_parents_list=lease.has_parents_list(environ))
        if self._family is not None:
            processes = self._processes.of(self._family.members)
            shared = decide_as_member(self._request, self._family, processes)
            if shared is not None:
                return self._share(folder, self._family, shared)
        wanted = Lease(folder, self._script, group=self._job, engine_job=self._request.grant.job)
        decision, is_held = lease.choose_and_lease(wanted, self._choose, self._processes.of)
        if decision.verdict is Verdict.WAIT:
            self._wait_begun_s = monotonic_s()
            decision, is_held = wait_for_lease(
                wanted,
                self._choose,
                demand=self._demand(decision),
                timeout_s=self._timeout_s,
                is_over=lambda last: last.verdict is not Verdict.WAIT,
                on_wait=self._report,
                before_look=self._read_again,
            )
        return Holding(decision, wanted if is_held else None, wanted.problem if is_held else None)

    def _share(self, folder: lease.Folder, family: Family, shared: Decision) -> Holding:
        """Share the claim of the parent's job. If no lease can be written, the parent's claim still counts."""
        own = Lease(folder, self._script, group=family.parent.group, engine_job=self._request.grant.job)
        try:
            held = lease.acquire_lease(own, lambda *_: shared.claims or None, shared.caps)
        except LeaseUnavailable as error:
            return Holding(shared, problem=error.problem, is_parents=True)
        return Holding(shared, held, held.problem if held else None, is_parents=True)

    def go_unclaimed(self, problem: LeaseProblem) -> Holding:
        """Decide without writing a lease, by the leases that can be read, and wait without a place in the queue."""
        self._job = ""
        while True:
            leases = lease.LeaseSnapshot()
            if self._folder is not None:
                with suppress(lease.LeaseUnavailable):
                    leases = lease.snapshot(self._folder, is_partial=True)
            decision, _ = self._choose(leases.holders, leases.queue)
            if decision.verdict is not Verdict.WAIT:
                return Holding(decision, problem=problem)
            if self._wait_begun_s is None:
                self._wait_begun_s = monotonic_s()
            waited_s = self._waited_s
            state = QueueState(leases.queue, self._demand(decision).count, waited_s)
            if waited_s >= self._timeout_s:
                raise GaveUp(self._timeout_s, state.position)
            self._report(state, decision)
            time.sleep(min(_UNCLAIMED_LOOK_S, self._timeout_s - waited_s))
            self._read_again(decision)

    @property
    def _waited_s(self) -> float:
        return 0.0 if self._wait_begun_s is None else monotonic_s() - self._wait_begun_s

    @property
    def _timeout_s(self) -> float:
        # A job that shares never gives up: when its wait is over, it decides to join other jobs.
        return self._request.wait_s if self._request.busy == "wait" else math.inf

    def _demand(self, decision: Decision) -> lease.Demand:
        request = request_of_all(self._request) if self._job else self._request
        usable = decision.ranking.suitable
        demand = request.demand_among()
        return lease.Demand(
            count=decision.waits_for,
            bytes_per_gpu=None if demand.is_whole else max(map(demand.on, usable), default=None),
            uuids=tuple(device.uuid for device in usable),
            joins=request.busy == "share",
            per_user=request.per_user,
            last_runs={
                each.device.uuid: each.last_runs.bytes for each in decision.ranking.candidates if each.last_runs
            },
            wait_s=math.ceil(request.wait_s),
        )

    def _choose(self, holders: Sequence[Holder], waiters: Sequence[Waiter]) -> tuple[Decision, Terms | None]:
        """Return the decision, given the leases of others, and the terms of the new lease; ``None`` for no lease."""
        request = replace(self._request, waited_s=self._waited_s)
        processes = self._processes.of(holders)
        decision, claims = decide_beside(
            request, holders, waiters, processes, unix_s(), family=self._family, job=self._job
        )
        if not claims:
            return decision, None
        # Child processes and other jobs read the caps from the lease.
        caps = {uuid: cap for uuid, cap in decision.caps.items() if uuid in decision.claims}
        return decision, Terms(claims, caps)

    def _report(self, state: QueueState, decision: Decision) -> None:
        self._on_wait(replace(state, timeout_s=self._request.wait_s), decision)

    def _read_again(self, decision: Decision) -> None:
        inventory = self._read()
        if self._readings.should_use(inventory, decision):
            inventory = inventory or NO_READING
            self._request = replace(self._request, inventory=inventory)
            self._processes = _process_table(inventory)


def _process_table(inventory: Inventory) -> lease.ProcessTable:
    return lease.ProcessTable(compute_pids(inventory.devices) - {os.getpid()})


def script_name(argv: Sequence[str]) -> str:
    """Return the script's name without folder and arguments; without a script file, the interpreter's name.

    Other users can see this name.
    """
    name = str(argv[0]).rpartition("/")[2] if argv and argv[0] else ""
    return name if name not in ("", "-c", "-m") else (sys.executable or "python").rpartition("/")[2]
