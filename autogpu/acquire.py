"""Decide and lease in one step that no other process of the host can come between; or wait until that is possible."""

from __future__ import annotations

import math
import os
import sys
import time
from contextlib import suppress
from typing import Callable, Iterable, Mapping, Sequence

from autogpu import lease
from autogpu.devices.model import Inventory
from autogpu.errors import NoEligibleDevice, WaitTimeout, raise_if_from_script, where_raised
from autogpu.frozen import Value, replace
from autogpu.lease import Holder, Lease, LeaseUnavailable, QueueState, Waiter
from autogpu.lease.queue import gave_up, wait_for_lease
from autogpu.process import monotonic_s, unix_s, with_ancestors
from autogpu.selection import explain
from autogpu.selection.decide import decide, why_none
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
from autogpu.selection.memory import demand_of
from autogpu.selection.model import Cap, Decision, SelectionRequest, Verdict
from autogpu.variables import LEASE

OnWait = Callable[[QueueState, Decision], None]


# While a process waits without a place in the queue: how often it looks.
_UNCLAIMED_LOOK_S = 2.0

# GPUs that have failed for so long are gone; an error that passes is no reason to give the place in the queue up.
_GONE_S = 5.0


class Taken(Value):
    """The decision for a process, and what it holds by it.

    Attributes:
        lease: Keeps its claim for the life of the process, and a rank's what all ranks of its job were promised;
            ``None`` where nothing is claimed.
        problem: What stood in the way of claiming; ``None`` if nothing did.
        is_parents: Whether the claim is a part of its parent process's.
        is_listed: ``CUDA_VISIBLE_DEVICES`` was written by it, so that CUDA counts the claimed GPUs first.
    """

    decision: Decision
    lease: Lease | None = None
    problem: LeaseUnavailable | None = None
    is_parents: bool = False
    is_listed: bool = False

    @property
    def is_unclaimed(self) -> bool:
        """No lease could be written: others don't see what the process takes."""
        return self.problem is not None and self.lease is None


def covers(taken: Taken, selection: SelectionRequest, *, is_assigned: bool) -> bool:
    """A framework wants nothing beyond what was taken.

    Args:
        is_assigned: A framework was told of it, so that the process can't have others instead.
    """
    if taken.lease is None:
        return is_assigned and selection.named is None
    uuids, claimed = selection.uuids or (), frozenset(taken.lease.claims)
    if uuids and claimed.issuperset(uuids):
        return True
    # The script may name several, of which nothing was known before CUDA's start.
    if not is_assigned and (selection.named_count > len(claimed) or not taken.is_listed):
        return False
    decided = [device.uuid for device in taken.decision.devices]
    return claimed.intersection(uuids).issuperset(decided if selection.named is None else selection.named_uuids)


def acquire(
    request: SelectionRequest,
    environ: Mapping[str, str],
    script: str,
    read: Callable[[], Inventory | None],
    on_wait: OnWait,
    above: Callable[[], Iterable[tuple[int, int]]] = with_ancestors,
) -> Taken:
    """Decide which GPUs the process takes and claim them.

    Args:
        environ: Names the lease folder, and the parent's lease if there is one.
        script: The running script's name, for the others to see.
        read: Takes a fresh reading of the driver.
        on_wait: Is called after each look without a result, with the queue and the decision not to take a GPU yet.
        above: Yields (pid, start time) of this process and of its ancestors.

    Raises:
        NoEligibleDevice: No GPU is free, and the policy asks for an error then.
        WaitTimeout: No GPU came free in the time that the policy gives.
    """
    if why_none(request):
        return Taken(decide(request))
    process = _Process(by_scripts_list(request), script, read, on_wait, above)
    try:
        return process.acquire(environ)
    except LeaseUnavailable as error:
        problem = error
    except Exception as error:
        raise_if_from_script(error)
        if isinstance(error, (NoEligibleDevice, WaitTimeout)):
            raise
        what = f"internal error ({type(error).__name__} at {where_raised(error)}: {error})"
        problem = LeaseUnavailable(what, remedy="AUTOGPU=0 turns autogpu off")
    # However the leases fail: one GPU, chosen by the readings, and growth are kept.
    return process.go_unclaimed(problem)


class FurtherReadings:
    """The readings of a process that waits: at first, one in which none of its GPUs answers does not count."""

    def __init__(self) -> None:
        self._failing_s: float | None = None

    def counts(self, inventory: Inventory | None, decision: Decision) -> bool:
        """One of its GPUs answers, or none has done so for seconds; ``decision`` is the last one."""
        awaited, now_s = {device.uuid for device in decision.ranking.suitable}, monotonic_s()
        is_failure = inventory is None or awaited.isdisjoint(device.uuid for device in inventory.devices)
        self._failing_s = (self._failing_s or now_s) if is_failure else None
        return self._failing_s is None or now_s - self._failing_s >= _GONE_S


class _NothingToWaitFor(Exception):
    """The GPUs that the process waited for can't be had any more: the decision says what becomes of it."""


class _Process:
    """One process that wants GPUs, before it has any; ``decision`` is the last one, by what is known so far."""

    def __init__(
        self,
        request: SelectionRequest,
        script: str,
        read: Callable[[], Inventory | None],
        on_wait: OnWait,
        above: Callable[[], Iterable[tuple[int, int]]],
    ) -> None:
        self.decision = Decision(Verdict.CANNOT_CHOOSE, "nothing is decided yet")
        self._request = request
        self._script = script
        self._read = read
        self._on_wait = on_wait
        self._above = above
        self._begun_s = monotonic_s()
        self._readings = FurtherReadings()
        self._has_waited = False
        self._folder: lease.Folder | None = None
        self._family: Family | None = None
        self._shared: Decision | None = None
        self._job = job_of_ranks(request)

    def acquire(self, environ: Mapping[str, str]) -> Taken:
        """Share what the job that started this process has, or choose and claim, or wait until that is possible."""
        self._folder = folder = lease.find_folder(environ)
        holders = lease.snapshot(folder).holders if environ.get(LEASE) else ()
        parent = lease.ancestor_lease(environ, holders, self._above()) if holders else None
        self._family = family_of(parent, holders, has_parents_list=lease.has_parents_list(environ))
        self._shared = decide_as_member(self._request, self._family) if self._family else None
        if self._family and self._shared:
            claims, parents = self._shared.claims or None, self._family.parent.group
            wanted = Lease(folder, self._script, group=parents)
            held = lease.acquire_lease(wanted, lambda *_: claims)
            return Taken(self._shared, held, held.problem if held else None, is_parents=True)
        wanted = Lease(folder, self._script, group=self._job, caps=self._caps)
        held = lease.acquire_lease(wanted, self._choose)
        if self.decision.verdict is Verdict.WAIT:
            with suppress(_NothingToWaitFor):
                held = self._wait(wanted)
        self.decision = self._told_of_wait()
        raise_if_refused(self.decision)
        return Taken(self.decision, held, held.problem if held else None)

    def go_unclaimed(self, problem: LeaseUnavailable) -> Taken:
        """Where no lease can be written: decide by those that can be read, and wait without a place in the queue."""
        if self._shared is not None:  # its parent's claim stands
            return Taken(self._shared, problem=problem, is_parents=True)
        self._job = ""
        while True:
            leases = lease.LeaseSnapshot()
            if self._folder is not None:
                with suppress(lease.LeaseUnavailable):
                    leases = lease.snapshot(self._folder, is_partial=True)
            self._choose(leases.holders, leases.queue)
            waited_s = self._waited_s
            if self.decision.verdict is not Verdict.WAIT:
                raise_if_refused(self.decision)
                return Taken(self._told_of_wait(), problem=problem)
            state = lease.QueueState(leases.queue, self._demand.count, waited_s)
            if waited_s >= self._timeout_s:
                raise gave_up(self._timeout_s, state.position)
            self._on_look(state)
            time.sleep(min(_UNCLAIMED_LOOK_S, self._timeout_s - waited_s))
            self._read_again()

    @property
    def _waited_s(self) -> float:
        return monotonic_s() - self._begun_s

    @property
    def _timeout_s(self) -> float:
        policy = self._request.policy
        # Who shares ends its wait by the decision.
        return policy.wait_s if policy.busy == "wait" else math.inf

    @property
    def _demand(self) -> lease.Demand:
        """What the others in the queue are to leave to this process."""
        request = request_of_all(self._request) if self._job else self._request
        usable, demand, policy = self.decision.ranking.suitable, demand_of(request), request.policy
        return lease.Demand(
            count=self.decision.waits_for,
            bytes_per_gpu=None if demand.is_whole else max(map(demand.on, usable), default=None),
            uuids=tuple(device.uuid for device in usable),
            joins=policy.busy == "share",
            per_user=policy.per_user,
        )

    def _told_of_wait(self) -> Decision:
        return explain.after_wait(self.decision, self._waited_s) if self._has_waited else self.decision

    def _caps(self) -> Mapping[str, Cap]:
        """By UUID, the most that this process may allocate: children may not be able to ask that, nor others."""
        return {uuid: most for uuid, most in self.decision.caps.items() if uuid in self.decision.claims}

    def _choose(self, holders: Sequence[Holder], waiters: Sequence[Waiter]) -> Mapping[str, int] | None:
        request = replace(self._request, waited_s=self._waited_s)
        # Each is a look into /proc, and the mutex is held: only for those that the driver lists.
        processes = lease.processes_of(holders, compute_pids(request.inventory.devices) - {os.getpid()})
        self.decision, claims = decide_beside(
            request, holders, waiters, processes, unix_s(), family=self._family, job=self._job
        )
        return claims or None

    def _wait(self, wanted: Lease) -> Lease:
        return wait_for_lease(
            wanted,
            self._choose,
            demand=self._demand,
            timeout_s=self._timeout_s,
            on_wait=self._on_look,
            before_look=self._read_again,
        )

    def _on_look(self, state: QueueState) -> None:
        if self.decision.verdict is not Verdict.WAIT:
            raise _NothingToWaitFor
        self._has_waited = True
        self._on_wait(replace(state, timeout_s=self._request.policy.wait_s), self.decision)

    def _read_again(self) -> None:
        inventory = self._read()
        if self._readings.counts(inventory, self.decision) and inventory is not None:
            self._request = replace(self._request, inventory=inventory)


def raise_if_refused(decision: Decision) -> None:
    """Raise :class:`NoEligibleDevice` where the decision is to stop."""
    if decision.verdict is Verdict.REFUSE:
        raise NoEligibleDevice(decision.why, remedy=explain.busy_remedy(decision))


def script_name(argv: Sequence[str]) -> str:
    """The name of the script, which others see; never its folder or arguments."""
    name = str(argv[0]).rpartition("/")[2] if argv and argv[0] else ""
    return name if name not in ("", "-c", "-m") else (sys.executable or "python").rpartition("/")[2]
