"""The GPUs of one process, which all its frameworks share: the list of GPUs, the decision and the claim."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Callable, ContextManager, Iterable, Mapping, MutableMapping, Sequence

from autogpu import stderr, uncaught
from autogpu.acquire import Holding, acquire, is_sufficient, script_name
from autogpu.devices import cuda as loaded_cuda
from autogpu.devices import probe
from autogpu.devices.enumeration import counted_by_framework, named_by_nvml
from autogpu.devices.model import NO_READING, Inventory
from autogpu.devices.probe import CONTEXT_DEADLINE_S, Readings
from autogpu.engines.facts import before_each_task, granted_here, is_first_rank_missing
from autogpu.engines.launchers import is_launched, library_count, rank_env
from autogpu.engines.model import Grant, is_engine_worker
from autogpu.errors import AutoGpuError, NoEligibleDevice, WaitTimeout, ignoring
from autogpu.frameworks.model import NOTHING_SAID, DeviceRequest
from autogpu.frozen import replace
from autogpu.history import JobLines, ThisRun
from autogpu.lease import GaveUp
from autogpu.policy.model import Policy, Resolved
from autogpu.process import fork_safe_rlock, monotonic_s, with_ancestors
from autogpu.reporting import choice, leases, waiting
from autogpu.reporting import engines as engine_messages
from autogpu.reporting import policy as policy_messages
from autogpu.selection.decide import decide
from autogpu.selection.decision import Decision, Reason, Verdict, left_alone
from autogpu.selection.model import SelectionRequest, demand_of_script, wanted_gpus
from autogpu.selection.visible_devices import InitialVisibility, Order, VisibleDevices
from autogpu.visibility import GpuList

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.devices.model import CudaDriver, DeviceReader, Reading
    from autogpu.frameworks.model import Framework
    from autogpu.lease import Lease

# Seconds from the start of the reading. The import of a framework takes about as long, so waiting costs little.
IMPORT_DEADLINE_S = 5.0

# How long another rank waits for rank 0, which its launcher may start later, and how often it looks for rank 0.
FIRST_RANK_S = 3.0
_LOOK_EVERY_S = 0.2


class Allocation:
    """The GPUs of one process, and the steps by which its frameworks choose and claim them.

    Attributes:
        guard: A context manager that keeps autogpu's errors from the script.
        environ: The environment that the script reads.
        gpu_list: The list of GPUs in the environment.
        cuda: The CUDA driver that the frameworks load.
        this_run: The record of this run of the script, with the memory that earlier runs needed.
        holding: The last decision with its lease; ``None`` before the first decision and after :meth:`release`.
        wants_order: True if one of the frameworks uses the GPUs that CUDA counts first.
        frameworks: Names of the imported frameworks.
        assigned_to: Names of the frameworks that use GPUs already, and can't exchange them.
        reported: True if autogpu has printed which GPUs the process uses, False if it has printed that the process uses
            none, ``None`` if it has printed neither.
        rank_env: The values of the variables that describe the ranks of a job, when they were last read.
        lock: Protects all attributes, because two threads may use two frameworks.
        say_in_each_rank: Prints a line in every rank of a job; :meth:`say` prints only in the first.
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
        self.this_run = ThisRun(resolved.policy, environ, grant, is_launched=is_launched(environ))
        self.holding: Holding | None = None
        self.wants_order = False
        self.frameworks: list[str] = []
        self.assigned_to: set[str] = set()
        self.reported: bool | None = None
        self.rank_env = rank_env(environ)
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
        """True if the environment shows that a launcher has started this process as one of several ranks."""
        return self.granted_by_now().rank is not None

    @property
    def decision(self) -> Decision | None:
        """The last decision; ``None`` until a framework is about to use GPUs."""
        return self.holding.decision if self.holding else None

    @property
    def lease(self) -> Lease | None:
        """The lease of the process; ``None`` if nothing is claimed."""
        return self.holding.lease if self.holding else None

    @property
    def claims_before_cuda(self) -> bool:
        """True if the process must claim before CUDA starts, because CUDA's list of GPUs depends on the claim.

        It must if the policy hides unclaimed GPUs, if CUDA does not show all MIG instances among the candidates, or if
        a framework takes the GPUs that CUDA counts first. Otherwise the process claims at its first context.
        """
        has_candidates = bool(self.visible.candidates) and not self.gpu_list.lists_chosen
        return self.gpu_list.hides_others or has_candidates or self.wants_order

    @property
    def inventory(self) -> Inventory | None:
        """The last reading of the driver; ``None`` if the driver has not answered in time."""
        return self.readings.wait(CONTEXT_DEADLINE_S)

    @property
    def counted_uuids(self) -> tuple[str, ...] | None:
        """UUIDs of the GPUs that CUDA has counted, in CUDA's order; ``None`` before CUDA has started."""
        uuids = self.cuda.visible_uuids()
        inventory = self.readings.newest
        return named_by_nvml(uuids, inventory.devices) if uuids and inventory else uuids

    @property
    def uuids(self) -> tuple[str, ...] | None:
        """UUIDs of the process's GPUs in the order in which CUDA counts, or will count them; ``None`` if unknown."""
        counted = self.counted_uuids
        return (self.visible.pool or None) if counted is None else counted

    # The import

    def join(self, framework: Framework) -> None:
        self.frameworks.append(framework.NAME)

    def list_gpus(self, *, wants_order: bool) -> None:
        """List the pool, idlest first, unless it is listed already. Claim nothing.

        Args:
            wants_order: True if the framework uses the GPUs that CUDA counts first.
        """
        with self.lock:
            self.wants_order |= wants_order
            if not self.visible.is_listed:
                self._list(is_choice=False)

    def list_choice(self, variables: Mapping[str, str]) -> None:
        """List only the idlest GPUs, because a framework that autogpu can't hook takes all GPUs. Claim nothing.

        Args:
            variables: Environment variables that make the framework allocate memory as needed.
        """
        with self.lock:
            if self.policy.growth:
                for name, value in variables.items():
                    self.environ.setdefault(name, value)
            self._list(is_choice=True)

    def _list(self, *, is_choice: bool) -> None:
        policy = self.policy
        inventory = self.readings.wait(IMPORT_DEADLINE_S)
        self.gpu_list.list_gpus(inventory, is_choice=is_choice)
        self.readings.prepare()
        if inventory and policy.level != "quiet":
            self.say(policy_messages.unmatched(self.resolved, inventory, self.visible.spec))

    # CUDA's start

    def prepare(self, said: DeviceRequest) -> None:
        """Prepare for CUDA's start: update the list of GPUs, begin a reading, and claim if the list depends on it."""
        with self.lock:
            if self.assigned_to:
                return
            has_fresh_reading = self.readings.is_pending
            is_listed_anew = self.follow_environment()
            if not said.places:
                self.gpu_list.keep_order(self.readings.newest)
            if self.visible.may_have_gpus and not has_fresh_reading:
                self.readings.begin()
            if self.claims_before_cuda and (is_listed_anew or self.holding is None):
                self._claim_before_cuda(said)

    def follow_environment(self) -> bool:
        """List the GPUs again if the script or the engine has changed the environment; return True if it has."""
        grant = self.grant
        inventory = self.readings.wait_or_replace(CONTEXT_DEADLINE_S)
        now = rank_env(self.environ)
        # A process that has claimed GPUs changes these variables only for ranks that it starts, as Lightning does.
        if is_engine_worker(self.environ) or (now != self.rank_env and self.lease is None):
            self.rank_env = now
            grant = self.granted_by_now()
        is_listed_anew = self.gpu_list.follow(inventory, grant)
        if is_listed_anew and self.holding is not None:
            self.holding = replace(self.holding, is_listed=False)
        return is_listed_anew

    def _claim_before_cuda(self, said: DeviceRequest) -> None:
        """Claim GPUs of the list, then list the claimed GPUs first or alone, before CUDA reads the list."""
        visible = self.visible
        inventory = self.readings.newest
        pool = visible.candidates or visible.pool
        if inventory is None or not pool or self.cuda.visible_uuids() is not None or self.assigned_to:
            return
        if not visible.candidates:
            if self._keeps_order(said):
                return
            said = self._as_place(said)
        selection = self.selection_request(replace(said, gpu_count=len(pool)))
        if self.claim(replace(selection, uuids=pool)).verdict is Verdict.TAKE:
            self._show_claimed(inventory, said.places)

    def _show_claimed(self, inventory: Inventory, places: Sequence[int]) -> None:
        """List the claimed GPUs first, or at the indices that the script is about to use."""
        holding = self.holding
        assert holding is not None
        decision = holding.decision
        at = self.gpu_list.list_claimed(inventory, decision, places, is_parents=holding.is_parents)
        if not holding.is_parents:
            decision = replace(decision, script_numbers=at)
        self.holding = replace(holding, decision=decision.counted_as(self.visible.pool), is_listed=True)
        self.tell_children()

    def _keeps_order(self, said: DeviceRequest) -> bool:
        """True if the list must keep its order, because ranks or the script use numbers that are indices into it."""
        is_ranks_list = self.visible.spec.is_scripts and self.grant.rank is not None
        return said.visible is not None or is_ranks_list or self.visible.order is Order.WORKERS

    def _as_place(self, said: DeviceRequest) -> DeviceRequest:
        """Treat the GPU number of a child process as an index into its parent's list."""
        at = said.places
        listed = self.visible
        # Don't treat several numbers as indices, because autogpu would claim only one GPU for them.
        is_place = listed.order is Order.PARENTS and len(at) == 1 and 0 < at[0] < len(listed.pool)
        return replace(said, visible=at) if is_place else said

    def hide_gpus_if_cpu_only(self) -> None:
        with self.lock:
            if self.assigned_to:
                return
            if self.holding is None and self.policy.count == 0 and self.visible.may_have_gpus:
                self.claim(self.selection_request(NOTHING_SAID))
            if self.decision is not None and self.decision.verdict is Verdict.CPU:
                self.gpu_list.hide_all()

    # The decision

    def selection_request(self, request: DeviceRequest) -> SelectionRequest:
        """Return all facts that decide which GPUs a framework's request gets, except the leases of other jobs."""
        visible = self.visible
        inventory = self.inventory or NO_READING
        uuids = self.uuids
        if uuids is not None:
            uuids = tuple(counted_by_framework(uuids, request.gpu_count, inventory.devices))
        numbers = tuple(request.visible or ())
        # A number that no GPU has is left to the framework, which reports it.
        is_number = visible.counts_indices(numbers, self.grant) and max(numbers) < request.gpu_count
        # Lightning starts one rank for each of its GPUs, so each rank claims one GPU.
        is_library_rank = library_count(self.grant.rank, self.environ) > 0
        wanted = wanted_gpus(
            1 if is_library_rank else self.policy.count,
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
            wanted=wanted,
            busy=self.policy.busy,
            wait_s=self.policy.wait_s,
            per_user=self.policy.per_user,
            grant=self.grant,
            last_runs=self.this_run.last_runs(inventory.devices),
            in_use=self._in_use(uuids),
            script_demand=demand_of_script(
                request.limits, request.fraction, request.logical, min(wanted.count, request.gpu_count)
            ),
        )

    def _in_use(self, uuids: Sequence[str] | None) -> Sequence[int]:
        in_use = self.cuda.ordinals_in_use()
        return in_use if uuids is None else [ordinal for ordinal in in_use if ordinal < len(uuids)]

    def decide_and_claim(self, selection: SelectionRequest, framework: str) -> Decision:
        """Choose and claim on a fresh reading, or reuse the claim of another framework if it is enough."""
        if selection.chosen == ():
            # The script hides all GPUs from this framework; its other frameworks may still use GPUs.
            return left_alone(selection, Reason.CHOSEN_BY_SCRIPT)
        decision = self._decide_by_holding(selection)
        if decision is None:
            decision = self.claim(selection)
            self._list_by_number(decision)
        self.note_use(framework)
        return decision

    def note_use(self, framework: str) -> None:
        """Note that a framework uses the claimed GPUs, so that the process can't exchange them."""
        if not self.assigned_to:
            before_each_task(self.environ, self._tell_what_is_kept)
        self.assigned_to.add(framework)

    def _decide_by_holding(self, selection: SelectionRequest) -> Decision | None:
        """Return the decision if the GPUs that the process holds are sufficient; ``None`` if it has to claim."""
        holding = self.holding
        if holding is None:
            return None
        uuids = selection.uuids or ()
        if holding.lease is not None and holding.decision.has_named(selection.numbers):
            return holding.decision
        if is_sufficient(holding, selection, is_assigned=bool(self.assigned_to)):
            return self.set_decision(holding.decision.counted_as(uuids, selection.named))
        if holding.lease is not None and self.assigned_to:
            # Another framework uses the claimed GPUs, and the script has named other GPUs for this framework.
            claimed = left_alone(selection, Reason.CHOSEN_BY_SCRIPT)
            return replace(claimed, claims=holding.decision.claims, visible=holding.decision.counted_as(uuids).visible)
        return None

    def _list_by_number(self, decision: Decision) -> None:
        """List the GPUs for child processes so that a number means the same GPU in them as in this process.

        A worker process that runs the script's module again uses the same number.
        """
        numbering = decision.numbering
        uuids = self.uuids or ()
        if numbering and self.lease is not None and not self.wants_order:
            in_order = [*(numbering[number] for number in sorted(numbering)), *range(len(uuids))]
            self.gpu_list.list_for_children([uuids[ordinal] for ordinal in dict.fromkeys(in_order)])
            self.gpu_list.show_claimed(self.readings.newest)

    def decide_of_hidden_pool(self, inventory: Inventory | None) -> None:
        """Decide for a process that sees no GPU because the policy, an engine or a cgroup denies all of them."""
        with self.lock:
            pool = self.visible.hidden
            # If a cgroup denies every GPU, autogpu has hidden none of them.
            is_denied = self.grant.is_none and inventory is not None and not inventory.failure
            if self.holding is None and (pool or is_denied):
                selection = replace(self.selection_request(DeviceRequest(len(pool))), uuids=pool)
                _raise_if_refused(self.set_decision(decide(selection)))

    # The claim

    def claim(self, request: SelectionRequest) -> Decision:
        """Release an earlier claim, then decide and claim: the script may have listed other GPUs since."""
        self.release()
        say = self.say_in_each_rank if request.grant.is_first else lambda line: None
        report = waiting.WaitingReport(say, is_explained=self.policy.level == "explain")
        environ = self.gpu_list.environ_without_autogpu()
        script = self.grant.task or script_name(getattr(sys, "argv", []))
        try:
            holding = acquire(request, environ, script, self.readings.take, report, self._above)
            _raise_if_refused(holding.decision)
        except GaveUp as gave_up:
            what, remedy = waiting.gave_up(gave_up, self.policy.locked)
            raise WaitTimeout(what, remedy=self.resolved.as_typed(remedy)) from None
        except KeyboardInterrupt as error:
            if report.has_waited:
                uncaught.show_line(error, waiting.STOPPED)
            raise
        except AutoGpuError as error:
            error.remedy = self.resolved.as_typed(error.remedy)
            raise
        finally:
            if report.has_waited:
                stderr.forget()  # each text is printed once, and a further wait has the same texts
        self.holding = holding
        self.tell_children()
        self._report_problem(holding)
        self._report_missing_rank(holding)
        return self.holding.decision

    def _report_problem(self, holding: Holding) -> None:
        if holding.problem:
            self.say([leases.claim_problem(holding.problem, is_unclaimed=holding.is_unclaimed)])
        elif holding.lease is not None and holding.lease.folder.is_on_fuse():
            self.say(["; ".join(leases.folder_on_fuse(str(holding.lease.folder.path)))])

    def _report_missing_rank(self, holding: Holding) -> None:
        """Print a line if this process has claimed GPUs for all ranks of its job, and rank 0 is missing."""
        rank = self.grant.dividing_rank
        claims = holding.lease.claims if holding.lease else {}
        if rank is None or self.policy.level == "quiet" or len(claims) <= len(holding.decision.devices):
            return
        # The job computes nothing before its first rank is there, so a short wait costs it nothing.
        until_s = monotonic_s() + FIRST_RANK_S
        while is_first_rank_missing(rank):
            if monotonic_s() >= until_s:
                claimed = [device for device in holding.decision.visible if device and device.uuid in claims]
                self.say_in_each_rank(engine_messages.first_rank_missing(rank, claimed))
                return
            time.sleep(_LOOK_EVERY_S)

    def set_decision(self, decision: Decision) -> Decision:
        self.holding = replace(self.holding or Holding(decision), decision=decision)
        return decision

    def release(self) -> None:
        if self.lease is not None:
            self.lease.release()
        self.holding = None

    def give_back(self, framework: Framework) -> bool:
        """Release the claim unless another framework uses it too; return True if it was released."""
        with self.lock:
            decision = self.decision
            wants_order = framework.WANTS_ORDER
            is_others = bool(self.assigned_to - {framework.NAME}) or (self.wants_order and not wants_order)
            if decision is None or self.lease is None or is_others or self.cuda.ordinals_in_use():
                return False
            self.release()
            if wants_order:
                self.assigned_to.clear()
            else:
                self.set_decision(decision)
            return True

    # The values for child processes, and the lines for people

    def tell_children(self) -> None:
        """Pass the claim to child processes and show the script its GPUs. Call this again when the list has changed."""
        if self.lease is not None:
            self.lease.mark_children(self.environ, self.visible.spec.value)
            self.gpu_list.show_claimed(self.readings.newest)

    def granted_by_now(self) -> Grant:
        """Return what an engine or a launcher grants this process, read from the environment as it is now."""
        return granted_here(self.gpu_list.environ_without_autogpu(), self.gpu_list.initial)

    def _tell_what_is_kept(self) -> None:
        """Print a line if Ray assigns other GPUs to a task than its worker process keeps from an earlier task."""
        with self.guard():
            grant = self.granted_by_now()
            now = engine_messages.granted_gpus(grant, self.gpu_list.spec_with(grant).value)
            before = engine_messages.granted_gpus(self.grant, self.visible.spec.value)
            if now != before and self.policy.level != "quiet":
                self.say_in_each_rank(engine_messages.kept_gpus(grant, now, before))

    def begin_report(self, *, takes_some: bool) -> bool:
        """Return True if a line about the GPUs of the process is still to be printed, and record it as printed.

        Args:
            takes_some: True for the line with the GPUs that the process uses; False for the line that it uses none so
                far, which is not printed after the other line.
        """
        if self.reported in (True, takes_some):
            return False
        self.reported = takes_some
        return True

    def say_of_job(self, lines: Sequence[str]) -> None:
        """Print lines about the GPUs of the process, and keep them for ``autogpu status``."""
        self.say(lines)
        if self.lease is not None and lines and self.policy.history and self.grant.is_first:
            with ignoring(OSError):  # a home that can't be written
                JobLines(self.environ).keep(self.lease.name, [self.resolved.as_typed(line) for line in lines])

    def say(self, lines: Iterable[str]) -> None:
        """Print lines if this process is the first rank of its job."""
        if self.grant.is_first:
            for line in lines:
                self.say_in_each_rank(line)


def _raise_if_refused(decision: Decision) -> None:
    if decision.verdict is Verdict.REFUSE:
        raise NoEligibleDevice(choice.why(decision), remedy=choice.busy_remedy(decision))
