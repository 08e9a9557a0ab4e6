"""One process on its way from the import of a framework to its GPUs: calls the packages in order."""

from __future__ import annotations

import enum
import os
import threading

from autogpu import engines
from autogpu.claim import Claim
from autogpu.devices import cuda as loaded_cuda
from autogpu.devices import probe
from autogpu.devices.model import by_uuid
from autogpu.devices.readings import CONTEXT_DEADLINE_S, IMPORT_DEADLINE_S, Readings
from autogpu.frameworks.base import DeviceRequest
from autogpu.frozen import replace
from autogpu.reporting import messages, stderr
from autogpu.reporting.waiting import WaitingReport
from autogpu.selection import instances
from autogpu.selection.explain import CHOSEN_BY_SCRIPT, order_is_fixed
from autogpu.selection.grants import is_engine_worker
from autogpu.selection.memory import demand_of_script
from autogpu.selection.model import Decision, SelectionRequest, Verdict, left_alone
from autogpu.selection.occupancy import own_memory_bytes
from autogpu.selection.ranks import told_of_siblings
from autogpu.threads import in_forked_children, one_at_a_time
from autogpu.visibility import VisibleDevices

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, ContextManager, Iterable, Literal, Mapping, MutableMapping, Sequence

    from autogpu.acquire import Acquisition, OnWait
    from autogpu.devices.model import CudaDriver, DeviceReader, Inventory, Reading
    from autogpu.frameworks.base import Framework, Hooks
    from autogpu.lease import Lease
    from autogpu.policy import Policy, Resolved
    from autogpu.selection.grants import Grant


class State(enum.Enum):
    """How far a process has come."""

    IMPORTING = "a framework is being imported, and the first reading is under way"
    NOT_APPLIED = "the frameworks are left alone"
    IMPORTED = "hooks are in place, and nothing is assigned"
    ASSIGNED = "GPUs are chosen, and leased"


class Allocation:
    """The GPUs of one process, whichever frameworks it imports.

    Attributes:
        guard: Around every step of ours.
        state: How far it has come.
        resolved: The policy.
        decision: Which GPUs, and why; ``None`` until a framework is about to take some.
        reported: Whether it was said that the process takes GPUs (``True``), or none (``False``).
    """

    def __init__(
        self,
        resolved: Resolved,
        environ: MutableMapping[str, str],
        guard: Callable[[], ContextManager[None]],
        *,
        grant: Grant,
        started_with: str | None,
        first_reading: Reading,
        reader: DeviceReader = probe,
        cuda: CudaDriver = loaded_cuda,
        say: Callable[[str], None] = stderr.say,
    ) -> None:
        """Nothing has happened yet.

        Args:
            environ: The environment that the driver, the framework and child processes read.
            grant: What an engine granted to the process as it was started.
            started_with: ``CUDA_VISIBLE_DEVICES`` when the interpreter started, ``None`` if it was not set.
            first_reading: Is under way since before the import.
            reader: Takes the later ones.
            cuda: The CUDA driver that the frameworks load.
            say: Prints one line for the user.
        """
        self.guard = guard
        self.state = State.IMPORTING
        self.resolved = resolved
        self.decision: Decision | None = None
        self.reported: set[bool] = set()
        self._frameworks: list[Framework] = []
        # Whether CUDA should count those GPUs first that the process has claimed.
        self._needs_order = False
        self._environ = environ
        self._cuda = cuda
        self._print = say
        self._readings = Readings(reader, environ, first_reading)
        self._visible = VisibleDevices(resolved.policy, environ, started_with, cuda, grant)
        self._told = told_of_siblings(environ)
        # Without the hooks for a choice at the context, the environment has to make it.
        self._visible_at_first: Literal["pool", "chosen"] = "pool"
        self._is_listed = self._is_ordered = False
        self._assigned_to: set[str] = set()
        self._is_told_what_is_kept = False
        self._claim = Claim(environ, self._acquire)
        # Two frameworks may be used in two threads.
        self.lock = threading.RLock()
        in_forked_children(self._unlock_in_child)

    def _unlock_in_child(self) -> None:
        self.lock = threading.RLock()

    @property
    def lease(self) -> Lease | None:
        """What the process holds; ``None`` where nothing is claimed."""
        return self._claim.lease

    @property
    def policy(self) -> Policy:
        """What holds for this process."""
        return self.resolved.policy

    @property
    def grant(self) -> Grant:
        """What an engine granted so far."""
        return self._visible.grant

    @property
    def needs_order(self) -> bool:
        """Whether CUDA should count those GPUs first that the process has claimed: a framework takes them."""
        return self._needs_order

    def begin_import(self, framework: Framework) -> None:
        """``framework`` is about to be imported."""
        self._frameworks.append(framework)

    def imported(self, framework: Framework, hooks: Hooks) -> None:
        """Its modules are there with our hooks in place, and it has not initialised CUDA yet."""
        if hooks.obstacle or not hooks.needs_gpus:
            # One framework may import another that lies beside it, of which no one may want to hear.
            if framework is self._frameworks[0]:
                self._readings.close()  # another framework begins a new one
                if hooks.obstacle:
                    self.leave_alone(hooks.obstacle, framework)
            return
        self._needs_order |= framework.WANTS_ORDER
        if not hooks.has_essential:
            self._visible_at_first, self._is_listed = "chosen", False
            self._environ.update(framework.fallback_environment(self._environ, self.policy.growth))
        if not self._is_listed:
            self._list_pool()
        if not framework.WANTS_ORDER:
            # It may have CUDA count the GPUs before it asks for any.
            self._claim_among_instances(self._readings.newest, DeviceRequest(0))
        if framework.TAKES_FIRST_GPUS and self.policy.count == 0:
            # Its C++ may start CUDA without a word.
            self.hide_where_none_is_taken()
        inventory = self._readings.newest
        has_gpus = inventory is None or bool(inventory.devices)
        if hooks.missing and has_gpus and self._visible.may_have_gpus:
            self.say([messages.hooks_missing(hooks, self.resolved, framework.NAME)])

    def _list_pool(self) -> None:
        """Order the visible GPUs, idlest first."""
        inventory = self._readings.wait(IMPORT_DEADLINE_S)
        self._visible.write(inventory, self._visible_at_first)
        self._is_listed = True
        self._readings.prepare()
        if not self._is_assigned:
            self.state = State.IMPORTED
            self._hide_all_but_claimed(inventory)
        if inventory and (self.policy.devices or self.policy.exclude) and self.policy.level != "quiet":
            from autogpu.selection.lists import unmatched_lists

            self.say(unmatched_lists(self.resolved, inventory, self._visible.spec).values())

    @property
    def _is_assigned(self) -> bool:
        return self.state is State.ASSIGNED

    @one_at_a_time
    def prepare(self, said: DeviceRequest | None = None) -> None:
        """CUDA is about to be started: follow what the script has written into ``CUDA_VISIBLE_DEVICES``.

        And begin to read the driver afresh, or claim now, where one of the frameworks takes what CUDA counts first.

        Args:
            said: What the script has said so far, where the claim comes before CUDA.
        """
        if self._is_assigned:
            return
        is_fresh = self._readings.is_pending
        is_listed_anew = self._follow_environment()
        inventory = self._readings.newest
        if said is not None and said.ordinal is None and self._visible_at_first == self.policy.visible == "pool":
            self._visible.keep_order(inventory)
        if is_listed_anew:
            self._is_ordered = False
            self._hide_all_but_claimed(inventory)
            is_listed_anew = not self._is_ordered
        if self._visible.may_have_gpus and not is_fresh:
            self._readings.begin()
        if self._visible.candidates and (is_listed_anew or self.decision is None):
            self._claim_among_instances(inventory, said or DeviceRequest(0))
        elif self._needs_order and (is_listed_anew or self.decision is None):
            self._put_claimed_first(inventory, said or DeviceRequest(0))

    def _follow_environment(self) -> bool:
        """Follow what script and engine have written since; whether the GPUs are listed anew."""
        inventory, grant = self._readings.wait_or_replace(CONTEXT_DEADLINE_S), self.grant
        told = told_of_siblings(self._environ)
        # What a process that has its GPUs tells of ranks is for those that it starts, as Lightning's first one does.
        if is_engine_worker(self._environ) or (told != self._told and self.lease is None):
            self._told = told
            grant = self._granted_by_now()
        return self._visible.refresh(inventory, grant, self._visible_at_first)

    @one_at_a_time
    def certain_gpu_count(self, built_for: tuple[int, int]) -> int | None:
        """How many GPUs CUDA will count, where that is certain before it starts and the process is to have one."""
        policy = self.policy
        # Where no GPU is free these two end at one all the same, sooner or later.
        is_given_one = policy.count != 0 and policy.busy in ("share", "wait") and policy.need_bytes is None
        is_begun = self.decision is not None or self._cuda.visible_uuids() is not None
        if not is_given_one or is_begun or policy.visible != "pool":
            return None
        self._follow_environment()
        inventory, pool = self._readings.newest, self._visible.pool
        if inventory is None or inventory.unreadable or self._visible.candidates or self.grant.is_none:
            return None
        return len(pool) or None if self._cuda.can_run(built_for) else None

    def _hide_all_but_claimed(self, inventory: Inventory | None) -> None:
        """For ``visible = "chosen"``: what is hidden from every library has to be claimed first, before CUDA starts.

        Where no GPU is taken the decision is left to the context.
        """
        is_wanted = self.policy.visible == "chosen" and self._visible_at_first == "pool"
        if is_wanted and self._visible.candidates:
            self._claim_among_instances(inventory, DeviceRequest(0))
            return
        if inventory is None or not is_wanted or self.grant.rank is not None:
            return
        if self._claim_before_cuda(DeviceRequest(0)):
            assert self.decision is not None
            self._visible.narrow(inventory, self.decision.devices)
            self._claim.tell_children()
            self.decision = self.decision.counted_as(self._visible.pool)
            self._is_ordered = True

    def _put_claimed_first(self, inventory: Inventory | None, said: DeviceRequest) -> None:
        """Claim before CUDA counts the GPUs, and let it count the claimed ones first; ranks in the order of ranks."""
        visible, is_rank = self._visible, self.grant.rank is not None
        # Ranks count what their script lists among themselves, and a list of ordinals counts what CUDA would.
        is_counted = said.visible is not None or (visible.spec.source == "script" and is_rank)
        if inventory is None or is_counted or visible.keeps_order:
            return
        # What a child of this program counts is a place in its parent's order, as long as that GPU is free.
        number = said.ordinal or 0
        is_place = visible.has_parents_list and not is_rank and 0 < number < len(visible.pool)
        if self._claim_before_cuda(replace(said, visible=(number,)) if is_place else said):
            self._list_claimed_first(inventory, said)

    def _claim_among_instances(self, inventory: Inventory | None, said: DeviceRequest) -> None:
        """Where MIG instances are in the pool, claim and list what was claimed: CUDA does not show all of the pool."""
        among = self._visible.candidates
        if not among or inventory is None or self._is_assigned or self._visible_at_first != "pool":
            return
        if self._claim_before_cuda(said, among) and self.decision is not None:
            self._visible.narrow_to_kind(inventory, self.decision)
            self.decision = self.decision.counted_as(self._visible.pool)
            self._list_claimed_first(inventory, said)

    def _list_claimed_first(self, inventory: Inventory, said: DeviceRequest) -> None:
        assert self.decision is not None
        named, is_parents = said.ordinal or 0, self._claim.is_parents
        at = self._visible.put_claimed_first(inventory, self.decision, named, is_parents=is_parents)
        if at and not self._claim.is_parents:
            self.decision = replace(self.decision, why=f"{self.decision.why}, as the script's cuda:{at}")
        self._claim.tell_children()
        self._is_ordered = True

    def _claim_before_cuda(self, said: DeviceRequest, among: Sequence[str] = ()) -> bool:
        """Choose and claim by the list that CUDA will read; whether a GPU is taken.

        Args:
            among: UUIDs of the GPUs to choose among, where it will be another list.
        """
        pool = among or self._visible.pool
        if not pool or self._cuda.visible_uuids() is not None:
            return False
        self._take(replace(self.selection_request(replace(said, gpu_count=len(pool))), uuids=pool))
        return self.decision is not None and self.decision.verdict is Verdict.TAKE

    @one_at_a_time
    def hide_where_none_is_taken(self) -> None:
        """Where the decision is to take no GPU, show CUDA none."""
        if self._is_assigned:
            return
        if self.decision is None and self.policy.count == 0 and self._visible.may_have_gpus:
            from autogpu.selection.decide import decide

            self.decision = decide(self.selection_request(DeviceRequest(0)))
        if self.decision is not None and self.decision.verdict is Verdict.CPU:
            self._visible.hide_all()

    @one_at_a_time
    def decide(self, selection: SelectionRequest, framework: Framework) -> Decision:
        """Choose and claim, on fresh readings; what was claimed before holds for every framework of the process."""
        decision, is_assigned = self.decision, self._is_assigned
        if selection.chosen == ():
            # This framework goes without; that says nothing of the others.
            return left_alone(selection, CHOSEN_BY_SCRIPT)
        self._assigned_to.add(framework.NAME)
        if decision is not None and self._holds(selection):
            decision = decision.counted_as(selection.uuids or (), selection.chosen)
        elif decision is not None and is_assigned and self.lease is not None:
            # Another framework has the claim, and this one's script has named other GPUs.
            return replace(
                decision.counted_as(selection.uuids or (), ()), verdict=Verdict.NOT_OUR_CHOICE, why=CHOSEN_BY_SCRIPT
            )
        else:
            decision = self._take(selection)
        if not is_assigned or selection.chosen:
            self.decision, self.state = decision, State.ASSIGNED
        if not is_assigned:
            engines.on_next_task(self._environ, self._tell_what_is_kept)
        return decision

    def _granted_by_now(self) -> Grant:
        return engines.granted_here(self._visible.environ_without_ours(), self._visible.started_with)

    def _tell_what_is_kept(self) -> None:
        """Say once that another task of this worker was given what a framework can't follow any more."""
        with self.guard():
            grant = self._granted_by_now()
            now, before = (
                messages.granted(each, visible)
                for each, visible in ((grant, self._visible.named(grant)), (self.grant, self._visible.spec.value))
            )
            if now != before and not self._is_told_what_is_kept and self.policy.level != "quiet":
                self._is_told_what_is_kept = True
                self._print(messages.kept_by_worker(now, before, grant))

    def _holds(self, selection: SelectionRequest) -> bool:
        """Whether what was decided before is what this process has, or all that this framework wants of it."""
        if self.lease is None:
            return self._is_assigned and selection.chosen is None
        uuids, claimed = selection.uuids or (), self._claim.uuids
        if uuids and set(uuids) <= claimed:
            return True
        if not self._is_assigned and selection.named_count > len(claimed):
            return False  # the script names more than one, of which nothing was known before CUDA
        if selection.chosen is None:
            wanted = {device.uuid for device in self.decision.devices} if self.decision else set()
        else:
            wanted = {uuids[ordinal] for ordinal in selection.chosen if ordinal < len(uuids)}
        return (self._is_assigned or self._is_ordered) and wanted <= claimed & set(uuids)

    @one_at_a_time
    def leave_order(self, selection: SelectionRequest) -> Decision:
        """The decision for a framework that takes what CUDA counts first, where that is not ours to say."""
        from autogpu.selection.explain import drawbacks

        why, uuids, rank = order_is_fixed(self.policy), selection.uuids or (), selection.grant.rank
        if self.decision is None and (self._visible.keeps_order or not uuids):
            return left_alone(selection, why)
        if self.decision is None:
            # A rank's script counts by its number, every other one begins with the first.
            first = 0 if rank is None else rank.rank % len(uuids)
            alone = replace(selection, uuids=uuids[first : first + 1], gpu_count=1, count_is_set=True, promised=None)
            policy = replace(self.policy, busy="share", count=1, per_user=0)
            taken = self._take(replace(alone, policy=policy, grant=replace(selection.grant, rank=None)))
            if taken.verdict is Verdict.TAKE:
                self.decision = replace(taken, why=why + drawbacks(taken.ranking.candidates)).counted_as(uuids)
            elif taken.verdict is not Verdict.CANNOT_CHOOSE:
                self.decision = left_alone(selection, why)
        return self.decision or left_alone(selection, why)

    @property
    def has_order(self) -> bool:
        """Whether CUDA counts first what this process was given; true before CUDA is initialised, and with one GPU."""
        uuids = self._cuda.visible_uuids()
        if uuids is None or len(uuids) < 2 or self._is_ordered:
            return not self._visible.keeps_order
        ordinals = self.decision.ordinals if self.decision else ()
        return bool(ordinals) and ordinals == tuple(range(len(ordinals)))

    @property
    def uuids(self) -> tuple[str, ...] | None:
        """Of the process's GPUs, as CUDA counts them, or will count them by the list that we wrote."""
        counted = self.counted_uuids
        return (self._visible.pool or None) if counted is None else counted

    @property
    def counted_uuids(self) -> tuple[str, ...] | None:
        """Of the GPUs that CUDA counts, as NVML writes them; ``None`` before it does."""
        return self._visible.counted(self._readings.newest)

    def selection_request(self, request: DeviceRequest) -> SelectionRequest:
        """What is known now, for a decision."""
        # Not at the top, as all that only a claim needs: many processes import a framework and make no context.
        from autogpu.selection.eligible import wanted_count

        selection = SelectionRequest(
            policy=self.policy,
            visible_spec=self._visible.spec,
            inventory=self._readings.wait(CONTEXT_DEADLINE_S),
            uuids=self.uuids,
            gpu_count=request.gpu_count,
            own_uid=os.getuid(),
            own_pid=os.getpid(),
            chosen=request.visible,
            chosen_by_position=bool(request.visible) and self._visible.counts_places(len(request.visible or ())),
            named_count=request.named,
            asked_count=request.count,
            count_is_set=self.resolved.settings["select.count"].overrides is not None,
            grant=self.grant,
            in_use=self._cuda.ordinals_in_use(),
        )
        wanted, said = min(wanted_count(selection), request.gpu_count), (request.limits, request.fraction)
        return replace(selection, script_demand=demand_of_script(*said, request.logical, wanted))

    def _take(self, request: SelectionRequest) -> Decision:
        waiting = WaitingReport(self._print if request.grant.is_first else lambda line: None)
        try:
            taken = self._claim.take(request, waiting)
        except KeyboardInterrupt as error:
            waiting.interrupted(error)
            raise
        self.decision = taken.decision
        self._claim.tell_children()
        if taken.problem:
            self.say([messages.lease_problem(taken.problem, is_unclaimed=taken.is_unclaimed)])
        return taken.decision

    def _acquire(self, request: SelectionRequest, on_wait: OnWait) -> Acquisition:
        from autogpu.acquire import acquire, running_script

        environ = self._visible.environ_without_ours()
        return acquire(request, environ, self.grant.task or running_script(), self._readings.take, on_wait)

    def wait_for_reading(self) -> Inventory | None:
        """The newest reading; ``None`` if none came in time."""
        return self._readings.wait(CONTEXT_DEADLINE_S)

    def measure(self) -> Mapping[int, int]:
        """By CUDA ordinal, what NVML shows now of this process."""
        return own_memory_bytes(self._readings.take(), self.counted_uuids or (), os.getpid())

    def report_hidden_pool(self) -> None:
        """Decide what becomes of a process that sees no GPU because of the policy, or of what denies them all.

        Raises:
            NoEligibleDevice: The policy asks for an error then.
        """
        from autogpu.acquire import raise_if_refused
        from autogpu.selection.decide import decide

        inventory, pool = self.wait_for_reading(), self._visible.hidden_pool
        # Where a cgroup denies every GPU there is nothing to hide.
        is_denied = self.grant.is_none and inventory is not None and not inventory.failure
        if self.decision is None and (pool or is_denied):
            self.decision = decide(replace(self.selection_request(DeviceRequest(len(pool))), uuids=pool))
            raise_if_refused(self.decision)

    @property
    def ignored_value(self) -> str | None:
        """``CUDA_VISIBLE_DEVICES`` as the script wrote it after CUDA had read it."""
        return self._visible.ignored_value

    @one_at_a_time
    def give_back(self, framework: Framework) -> bool:
        """End the claim of a framework that goes without GPUs, unless it is another's too; whether that was done."""
        is_others = bool(self._assigned_to - {framework.NAME}) or (self._needs_order and not framework.WANTS_ORDER)
        if self.lease is None or is_others or self._cuda.ordinals_in_use():
            return False
        self._claim.release()
        if framework.WANTS_ORDER:
            self.decision, self.state, self._is_ordered = None, State.IMPORTED, False
        return True

    @one_at_a_time
    def begin_workers(self, count: int, framework: Framework) -> str:
        """A name for the workers that the program is about to start, who choose together; ``""`` if each does alone.

        What the process has claimed itself and does not use is for them.
        """
        is_own_choice = self._visible.spec.source == "script" or self.policy.visible == "chosen"
        if self.grant.rank is not None or is_own_choice or self._cuda.ordinals_in_use():
            return ""
        known = by_uuid(self._readings.newest.devices if self._readings.newest else ())
        pool = [known[uuid] for uuid in self.uuids or () if uuid in known]
        # One list names cards or instances, and each worker counts by its list up to its own number.
        if not 2 <= count <= len(instances.cards(pool) or pool):
            return ""
        is_free = self.lease is None or (not self._claim.is_parents and self.give_back(framework))
        return f"workers.{os.getpid()}.{os.urandom(8).hex()}" if is_free else ""

    def leave_alone(self, why: str, framework: Framework) -> None:
        """Say that the policy is not applied; the framework continues with its defaults."""
        self.state = State.NOT_APPLIED
        self.say([messages.not_applied(why, framework.NAME)])

    def say(self, lines: Iterable[str]) -> None:
        """Print what only one of the ranks of a job needs to say."""
        if self.grant.is_first:
            for line in lines:
                self._print(line)
