"""The GPUs of one process, shared by all frameworks that it imports: the list of GPUs, the decision, the claim."""

from __future__ import annotations

import os
import sys
from typing import Any, Callable, ContextManager, Iterable, MutableMapping, Sequence

from autogpu import engines, stderr
from autogpu.acquire import Taken, acquire, covers, script_name
from autogpu.devices import cuda as loaded_cuda
from autogpu.devices import probe
from autogpu.devices.enumeration import counted_by_framework, named_by_nvml
from autogpu.devices.model import NO_READING, Inventory
from autogpu.devices.probe import CONTEXT_DEADLINE_S, Readings
from autogpu.errors import AutoGpuError, NoEligibleDevice, WaitTimeout
from autogpu.frameworks.model import NOTHING_SAID, DeviceRequest
from autogpu.frozen import replace
from autogpu.history import ThisRun
from autogpu.lease import GaveUp
from autogpu.policy.model import Policy, Resolved
from autogpu.process import fork_safe_rlock, with_ancestors
from autogpu.reporting import choice, leases, waiting
from autogpu.reporting import engines as engine_messages
from autogpu.reporting import policy as policy_messages
from autogpu.selection.decide import decide
from autogpu.selection.decision import Decision, Reason, Verdict, left_alone
from autogpu.selection.grants import Grant, is_engine_worker
from autogpu.selection.memory import demand_of_script
from autogpu.selection.model import ONE_GPU, SelectionRequest, wanted_gpus
from autogpu.selection.ranks import library_count, told_of_siblings
from autogpu.selection.visible_devices import InitialVisibility, Order, VisibleDevices, restore
from autogpu.variables import LEASE
from autogpu.visibility import GpuList

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.devices.model import CudaDriver, DeviceReader, Reading
    from autogpu.frameworks.model import Framework
    from autogpu.lease import Lease

# Seconds from the start of the reading. The import of a framework takes about as long, so waiting costs little.
IMPORT_DEADLINE_S = 5.0


class Allocation:
    """The GPUs of one process, and the steps by which its frameworks choose and claim them.

    Attributes:
        guard: A context manager that keeps autogpu's errors from the script.
        environ: The environment that the script reads.
        gpu_list: The list of GPUs in the environment.
        cuda: The CUDA driver that the frameworks load.
        this_run: The record of this run of the script, with what earlier runs needed.
        taken: The last decision with its lease; ``None`` before the first decision and after the claim was given back.
        wants_order: True if one of the frameworks uses the GPUs that CUDA counts first.
        frameworks: Names of the imported frameworks.
        assigned_to: Names of the frameworks that have their GPUs.
        reported: True if the line about the process's GPUs was printed, False if the line that it uses none, ``None``
            before either.
        told: The variables that describe the ranks of a job, as they were when last read.
        lock: Protects all of this, because two threads may use two frameworks.
        say_in_each_rank: Prints a line in this process, also if it is not the first rank of its job.
    """

    def __init__(
        self,
        resolved: Resolved,
        environ: MutableMapping[str, str],
        guard: Callable[[], ContextManager[None]],
        *,
        grant: Grant,
        initial: InitialVisibility,
        first_reading: Reading,
        reader: DeviceReader = probe,
        cuda: CudaDriver = loaded_cuda,
        above: Callable[[], Iterable[tuple[int, int]]] = with_ancestors,
        say: Callable[[str], None] = stderr.say,
        **list_options: Any,
    ) -> None:
        self.guard = guard
        self.resolved = resolved
        self.environ = environ
        self.cuda = cuda
        self._above = above
        self.readings = Readings(reader, environ, first_reading)
        self.gpu_list = GpuList(resolved.policy, environ, initial, cuda, grant, **list_options)
        self.this_run = ThisRun(resolved.policy, environ, grant)
        self.taken: Taken | None = None
        self.wants_order = False
        self.frameworks: list[str] = []
        self.assigned_to: set[str] = set()
        self.reported: bool | None = None
        self.told = told_of_siblings(environ)
        # AUTOGPU_LEASE names the claim for child processes. These are its value before this process wrote it, and the
        # last value that was written, with the pid of the writer.
        self._parents_marker: str | None = None
        self._written_marker: tuple[int, str] | None = None
        self._has_told_what_is_kept = False
        self.say_in_each_rank: Callable[[str], None] = lambda line: say(resolved.as_typed(line))
        self.lock = fork_safe_rlock(self)

    @property
    def policy(self) -> Policy:
        return self.resolved.policy

    @property
    def visible(self) -> VisibleDevices:
        return self.gpu_list.visible

    @property
    def grant(self) -> Grant:
        return self.gpu_list.grant

    @property
    def is_rank(self) -> bool:
        """True if a launcher has started this process as one of several, by its present environment."""
        return self.granted_by_now().rank is not None

    @property
    def decision(self) -> Decision | None:
        """The last decision; ``None`` until a framework is about to use GPUs."""
        return self.taken.decision if self.taken else None

    @property
    def lease(self) -> Lease | None:
        """The lease of the process; ``None`` if nothing is claimed."""
        return self.taken.lease if self.taken else None

    @property
    def claims_before_cuda(self) -> bool:
        """True if the process claims before CUDA starts: the list of GPUs that CUDA reads then depends on the claim.

        That is so if unclaimed GPUs are to be hidden, if CUDA does not show all MIG instances among the candidates, and
        if a framework takes the GPUs that CUDA counts first. Otherwise the process claims at its first context.
        """
        has_candidates = bool(self.visible.candidates) and not self.gpu_list.lists_chosen
        return self.gpu_list.hides_others or has_candidates or self.wants_order

    @property
    def inventory(self) -> Inventory | None:
        """The result of the reading that was begun last; ``None`` if the driver does not answer in time."""
        return self.readings.wait(CONTEXT_DEADLINE_S)

    @property
    def counted_uuids(self) -> tuple[str, ...] | None:
        """NVML's UUIDs of the GPUs that CUDA has counted, in CUDA's order; ``None`` before CUDA has started."""
        uuids, inventory = self.cuda.visible_uuids(), self.readings.newest
        return named_by_nvml(uuids, inventory.devices) if uuids and inventory else uuids

    @property
    def uuids(self) -> tuple[str, ...] | None:
        """UUIDs of the process's GPUs in the order in which CUDA counts, or will count them; ``None`` if unknown."""
        counted = self.counted_uuids
        return (self.visible.pool or None) if counted is None else counted

    # The import

    def list_gpus(self, *, anew: bool) -> None:
        """List the pool, idlest first, unless it is listed already; again if ``anew``. Claim nothing."""
        policy = self.policy
        with self.lock:
            if anew or not self.visible.is_listed:
                inventory = self.readings.wait(IMPORT_DEADLINE_S)
                self.gpu_list.list_gpus(inventory)
                self.readings.prepare()
                if inventory and (policy.devices or policy.exclude) and policy.level != "quiet":
                    self.say(policy_messages.unmatched(self.resolved, inventory, self.visible.spec))

    # CUDA's start

    def prepare(self, said: DeviceRequest) -> None:
        """Prepare for CUDA's start: follow the environment, then claim, or begin to read the driver for the claim."""
        with self.lock:
            if self.assigned_to:
                return
            has_fresh_reading = self.readings.is_pending
            is_listed_anew = self.follow_environment()
            if not said.places:
                self.gpu_list.keep_order(self.readings.newest)
            if self.visible.may_have_gpus and not has_fresh_reading:
                self.readings.begin()
            if self.claims_before_cuda and (is_listed_anew or self.taken is None):
                self._claim_before_cuda(said)

    def follow_environment(self) -> bool:
        """List the GPUs again if the script or the engine has changed the environment; return True if it has."""
        grant = self.grant
        inventory = self.readings.wait_or_replace(CONTEXT_DEADLINE_S)
        told = told_of_siblings(self.environ)
        # If this process has its GPUs, it has set these variables for ranks that it starts, as Lightning does.
        if is_engine_worker(self.environ) or (told != self.told and self.lease is None):
            self.told = told
            grant = self.granted_by_now()
        is_listed_anew = self.gpu_list.follow(inventory, grant)
        if is_listed_anew and self.taken is not None:
            self.taken = replace(self.taken, is_listed=False)
        return is_listed_anew

    def _claim_before_cuda(self, said: DeviceRequest) -> None:
        """Claim GPUs of the list that CUDA will read, and write the list again with the claimed GPUs first or alone."""
        visible = self.visible
        inventory, pool = self.readings.newest, visible.candidates or visible.pool
        if inventory is None or not pool or self.cuda.visible_uuids() is not None or self.assigned_to:
            return
        if not visible.candidates:
            if self._keeps_order(said):
                return
            said = self._as_place(said)
        selection = self.selection_request(replace(said, gpu_count=len(pool)))
        if self.take(replace(selection, uuids=pool)).verdict is Verdict.TAKE:
            self._show_claimed(inventory, said.places)

    def _show_claimed(self, inventory: Inventory, places: Sequence[int]) -> None:
        """Let CUDA count the claimed GPUs first, or under the numbers that the script is about to use."""
        taken = self.taken
        assert taken is not None
        decision = taken.decision
        at = self.gpu_list.list_claimed(inventory, decision, places, is_parents=taken.is_parents)
        if not taken.is_parents:
            decision = replace(decision, indices=at)
        self.taken = replace(taken, decision=decision.counted_as(self.visible.pool), is_listed=True)
        self.tell_children()

    def _keeps_order(self, said: DeviceRequest) -> bool:
        """True if the list must not be reordered, because ranks or the script's numbers index it as it is."""
        is_ranks_list = self.visible.spec.is_scripts and self.grant.rank is not None
        return said.visible is not None or is_ranks_list or self.visible.order is Order.WORKERS

    def _as_place(self, said: DeviceRequest) -> DeviceRequest:
        """Treat the GPU number of a child process as an index into its parent's list."""
        at, listed = said.places, self.visible
        # Several numbers are not treated so: only one GPU would be claimed for them.
        is_place = listed.order is Order.PARENTS and len(at) == 1 and 0 < at[0] < len(listed.pool)
        return replace(said, visible=at) if is_place else said

    def hide_where_none_is_taken(self) -> None:
        """Hide every GPU from CUDA if the process is to use none and CUDA has not started."""
        with self.lock:
            if self.assigned_to:
                return
            if self.taken is None and self.policy.count == 0 and self.visible.may_have_gpus:
                self.take(self.selection_request(NOTHING_SAID))
            if self.decision is not None and self.decision.verdict is Verdict.CPU:
                self.gpu_list.hide_all()

    # The decision

    def selection_request(self, request: DeviceRequest) -> SelectionRequest:
        """Return everything that a decision depends on, except the leases, for the request of a framework's script."""
        visible = self.visible
        inventory, uuids = self.inventory or NO_READING, self.uuids
        if uuids is not None:
            uuids = tuple(counted_by_framework(uuids, request.gpu_count, inventory.devices))
        numbers = tuple(request.visible or ())
        self.this_run.read_last_runs(self.readings.newest)
        # The framework reports a number that does not exist.
        is_number = visible.counts_indices(numbers, self.grant) and max(numbers) < request.gpu_count
        wanted = wanted_gpus(
            self.policy.count,
            is_set=self.resolved.settings["select.count"].is_set,
            numbers=numbers if is_number else (),
            named=request.named,
            asked=request.count,
        )
        return SelectionRequest(
            policy=self.policy,
            visible_spec=visible.spec,
            inventory=inventory,
            uuids=uuids,
            gpu_count=request.gpu_count,
            own_uid=os.getuid(),
            own_pid=os.getpid(),
            chosen=None if is_number else request.visible,
            numbers=numbers if is_number else (),
            keeps_places=is_number and self.wants_order,
            # Lightning starts one rank for each GPU that it was given, so each rank claims one.
            wanted=ONE_GPU if library_count(self.grant.rank, self.environ) else wanted,
            busy=self.policy.busy,
            wait_s=self.policy.wait_s,
            per_user=self.policy.per_user,
            grant=self.grant,
            in_use=[o for o in self.cuda.ordinals_in_use() if uuids is None or o < len(uuids)],
            script_demand=demand_of_script(
                request.limits, request.fraction, request.logical, min(wanted.count, request.gpu_count)
            ),
        )

    def decide(self, selection: SelectionRequest, framework: str) -> Decision:
        """Choose and claim on fresh readings. A claim of another framework of this process is used again if it fits."""
        if selection.chosen == ():
            # The script hides all GPUs from this framework; others may still use some.
            return left_alone(selection, Reason.CHOSEN_BY_SCRIPT)
        taken = self.taken
        is_first, uuids = not self.assigned_to, selection.uuids or ()
        if taken is not None and taken.lease is not None and taken.decision.has_named(selection.numbers):
            decision = taken.decision
        elif taken is not None and covers(taken, selection, is_assigned=not is_first):
            decision = self.keep_decision(taken.decision.counted_as(uuids, selection.named))
        elif taken is not None and taken.lease is not None and not is_first:
            # Another framework has the claim, and this one's script has named other GPUs.
            decision = replace(
                taken.decision.counted_as(uuids, ()), verdict=Verdict.NOT_OUR_CHOICE, reason=Reason.CHOSEN_BY_SCRIPT
            )
        else:
            decision = self.take(selection)
            self._list_by_number(decision)
        self.assigned_to.add(framework)
        if is_first:
            engines.on_next_task(self.environ, self._tell_what_is_kept)
        return decision

    def _list_by_number(self, decision: Decision) -> None:
        """List the GPUs for child processes in the order of this script's numbers.

        A worker process that runs the script's module again uses the same number, and so gets the same GPU.
        """
        numbering, uuids = decision.numbering, self.uuids or ()
        if numbering and self.lease is not None and not self.wants_order:
            in_order = [*(numbering[number] for number in sorted(numbering)), *range(len(uuids))]
            self.gpu_list.list_for_children([uuids[ordinal] for ordinal in dict.fromkeys(in_order)])
            self.gpu_list.show_claimed(self.readings.newest)

    def leave_order(self, selection: SelectionRequest, places: Sequence[int]) -> Decision:
        """Claim the GPU that the script is about to use if CUDA has already put the GPUs in order.

        Args:
            places: The script's GPU numbers.
        """
        uuids, rank = selection.uuids or (), selection.grant.rank
        is_worker = self.visible.order is Order.WORKERS
        reason = Reason.WORKERS_NUMBER if is_worker else Reason.COUNTED_BEFORE
        if self.decision is not None:
            return self.decision
        if is_worker or not uuids:
            return left_alone(selection, reason)
        number = rank.rank % len(uuids) if rank is not None else next(iter(places), 0)
        number = number if number < len(uuids) else 0
        in_use = [0] if number in selection.in_use else []  # its index in a list of this GPU alone
        # The framework uses this GPU in any case, even if it is busy or the user holds as many as the cap allows.
        alone = replace(
            selection,
            uuids=uuids[number : number + 1],
            in_use=in_use,
            gpu_count=1,
            wanted=ONE_GPU,
            busy="share",
            wait_s=0.0,
            per_user=0,
            grant=replace(selection.grant, rank=None),
        )
        taken = self.take(alone)
        if taken.verdict is Verdict.TAKE:
            taken = replace(taken, reason=reason).counted_as(uuids)
        elif taken.verdict is not Verdict.CANNOT_CHOOSE:
            taken = left_alone(selection, reason)
        return self.keep_decision(taken)

    @property
    def has_order(self) -> bool:
        """True if CUDA counts the claimed GPUs first, or can be made to: CUDA has not started, or has one GPU."""
        taken, uuids = self.taken, self.cuda.visible_uuids()
        if uuids is None or len(uuids) < 2 or (taken is not None and taken.is_listed):
            return self.visible.order is not Order.WORKERS
        ordinals = taken.decision.ordinals if taken else ()
        return bool(ordinals) and ordinals == tuple(range(len(ordinals)))

    def decide_of_hidden_pool(self, inventory: Inventory | None) -> None:
        """Decide for a process that sees no GPU because the policy, an engine or a cgroup denies all of them."""
        with self.lock:
            pool = self.visible.hidden
            # If a cgroup denies every GPU, none is hidden.
            is_denied = self.grant.is_none and inventory is not None and not inventory.failure
            if self.taken is None and (pool or is_denied):
                selection = replace(self.selection_request(DeviceRequest(len(pool))), uuids=pool)
                _raise_if_refused(self.keep_decision(decide(selection)))

    # The claim

    def take(self, request: SelectionRequest) -> Decision:
        """Decide and claim. An earlier claim is released, because the script may have listed other GPUs since."""
        self.release()
        report = waiting.WaitingReport(self.say_in_each_rank if request.grant.is_first else lambda line: None)
        environ = self.gpu_list.environ_without_autogpu()
        script = self.grant.task or script_name(getattr(sys, "argv", []))
        try:
            taken = acquire(request, environ, script, self.readings.take, report, self._above)
            _raise_if_refused(taken.decision)
        except GaveUp as gave_up:
            what, remedy = waiting.gave_up(gave_up)
            raise WaitTimeout(what, remedy=self.resolved.as_typed(remedy)) from None
        except AutoGpuError as error:
            error.remedy = self.resolved.as_typed(error.remedy)
            raise
        self.taken = taken
        self.tell_children()
        if self.taken.problem:
            self.say([leases.lease_problem(self.taken.problem, is_unclaimed=self.taken.is_unclaimed)])
        elif self.lease is not None and self.lease.folder.is_on_fuse():
            self.say(["; ".join(leases.folder_on_fuse(str(self.lease.folder.path)))])
        return self.taken.decision

    def keep_decision(self, decision: Decision) -> Decision:
        """Replace the last decision; keep the claim."""
        self.taken = replace(self.taken or Taken(decision), decision=decision)
        return decision

    def release(self) -> None:
        """Release the claim and forget the decision."""
        if self.lease is not None:
            self.lease.release()
        self.taken = None
        # Later claims belong to the parent's job again. A forked child, or a value of somebody else, is left alone.
        if self._written_marker == (os.getpid(), self.environ.get(LEASE)):
            restore(self.environ, self._parents_marker, LEASE)

    def give_back(self, framework: Framework) -> bool:
        """Release the claim unless another framework uses it too; return True if it was released."""
        with self.lock:
            decision, wants_order = self.decision, framework.WANTS_ORDER
            is_others = bool(self.assigned_to - {framework.NAME}) or (self.wants_order and not wants_order)
            if decision is None or self.lease is None or is_others or self.cuda.ordinals_in_use():
                return False
            self.release()
            if wants_order:
                self.assigned_to.clear()
            else:
                self.keep_decision(decision)
            return True

    # What it tells its children, and people

    def tell_children(self) -> None:
        """Name the claim for child processes, and show the script its GPUs. Call it again when the list has changed."""
        if self.lease is not None:
            if self._written_marker != (os.getpid(), self.environ.get(LEASE)):
                self._parents_marker = self.environ.get(LEASE)
            self.environ[LEASE] = marker = self.lease.marker(self.visible.spec.value)
            self._written_marker = (os.getpid(), marker)
            self.gpu_list.show_claimed(self.readings.newest)

    def leave_to_workers(self, count: int, framework: Framework) -> bool:
        """Let ``count`` processes, which one call is about to start, choose a GPU each; return True if they will."""
        taken = self.taken
        is_own_choice = self.visible.spec.is_scripts or (self.gpu_list.hides_others and taken is not None)
        if self.grant.rank is not None or is_own_choice or self.cuda.ordinals_in_use():
            return False
        if not 2 <= count <= len(self.uuids or ()):
            return False
        # A claim that the process does not use is released for them.
        return taken is None or taken.lease is None or (not taken.is_parents and self.give_back(framework))

    def granted_by_now(self) -> Grant:
        """Return what an engine or a launcher grants this process by its present environment."""
        return engines.granted_here(self.gpu_list.environ_without_autogpu(), self.gpu_list.initial)

    def _tell_what_is_kept(self) -> None:
        """Print one line if Ray assigns other GPUs to a later task of this process, whose framework keeps its GPUs."""
        with self.guard():
            grant = self.granted_by_now()
            now = engine_messages.granted_gpus(grant, self.gpu_list.spec_with(grant).value)
            before = engine_messages.granted_gpus(self.grant, self.visible.spec.value)
            if now != before and not self._has_told_what_is_kept and self.policy.level != "quiet":
                self._has_told_what_is_kept = True
                self.say_in_each_rank(engine_messages.kept_gpus(grant, now, before))

    def say(self, lines: Iterable[str]) -> None:
        """Print lines, but only in the first rank of a job."""
        if self.grant.is_first:
            for line in lines:
                self.say_in_each_rank(line)


def _raise_if_refused(decision: Decision) -> None:
    """Raise :class:`NoEligibleDevice` if the decision is to stop."""
    if decision.verdict is Verdict.REFUSE:
        raise NoEligibleDevice(choice.why(decision), remedy=choice.busy_remedy(decision))
