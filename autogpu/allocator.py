"""The steps of a process to its GPUs, as the hooks of one framework call them."""

from __future__ import annotations

import functools
import os
from typing import Any, Callable, Mapping, Sequence, TypeVar

from autogpu import engines
from autogpu.allocation import CONTEXT_DEADLINE_S, IMPORT_DEADLINE_S, Allocation, Moment
from autogpu.devices.model import Inventory, by_uuid
from autogpu.frameworks.base import NOTHING_SAID, Assignment, DeviceRequest, GpuListing, Hooks, Usage
from autogpu.frozen import replace
from autogpu.policy.model import Policy
from autogpu.reporting import messages
from autogpu.reporting.text import listed
from autogpu.reports import Reports
from autogpu.selection import instances
from autogpu.selection.explain import CHOSEN_BY_SCRIPT, drawbacks, order_is_fixed
from autogpu.selection.grants import Grant, is_engine_worker
from autogpu.selection.memory import caps, ceilings, context_reserve_bytes, demand_of_script, usable_bytes
from autogpu.selection.model import Cap, Decision, SelectionRequest, Verdict, left_alone
from autogpu.selection.occupancy import own_memory_bytes
from autogpu.selection.ranking import unmatched_lists
from autogpu.selection.ranks import told_of_siblings
from autogpu.selection.visible_devices import counted_by_framework
from autogpu.visibility import Order

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.frameworks.base import Framework

    Method = TypeVar("Method", bound=Callable[..., Any])


def _one_at_a_time(method: Method) -> Method:
    """Let one thread at a time decide: two may use two frameworks."""

    @functools.wraps(method)
    def call(self: Allocator, *args: Any, **kwargs: Any) -> Any:
        with self.allocation.lock:
            return method(self, *args, **kwargs)

    return call  # type: ignore[return-value]


class Allocator:
    """The hooks of one framework call this when it is about to take GPUs; all of a process have one allocation.

    Attributes:
        framework: Whose hooks call.
        allocation: Of the process.
        guard: Around every step of ours: an error is reported once, and the framework continues with its defaults. Lets
            through what a policy asks for: :class:`autogpu.errors.NoEligibleDevice`, ``SystemExit``.
        assignment: The decision, once it has been made.
        reports: Says what becomes of this framework.
    """

    def __init__(self, allocation: Allocation, framework: Framework) -> None:
        self.framework = framework
        self.allocation = allocation
        self.policy, self.readings, self.visible = allocation.policy, allocation.readings, allocation.visible
        self.guard = allocation.guard
        self.reports = Reports(allocation, framework)
        self.assignment: Assignment | None = None
        self._decision: Decision | None = None
        self._selection: SelectionRequest | None = None
        self._is_given_back = False
        self._has_told_what_is_kept = False
        self._counted_elsewhere: dict[tuple[str, ...], int | None] = {}
        allocation.frameworks.append(framework.NAME)

    # The import

    def imported(self) -> None:
        """The framework's modules are there: hook into them. It has not initialised CUDA yet."""
        allocation, hooks = self.allocation, self.framework.install_hooks(self)
        if hooks.obstacle or not hooks.needs_gpus:
            # A framework may import another one that is merely installed: say nothing of that.
            if allocation.frameworks[0] == self.framework.NAME:
                self.readings.close()  # another framework begins a new one
                if hooks.obstacle:
                    self.on_unsupported(hooks.obstacle)
            return
        allocation.wants_order |= self.framework.WANTS_ORDER
        self._list_gpus(hooks)
        if self.framework.TAKES_FIRST_GPUS and self.policy.count == 0:
            # Its C++ may start CUDA without a word.
            self.hide_where_none_is_taken()
        if hooks.missing and self.visible.may_have_gpus:
            allocation.say([messages.hooks_missing(hooks, allocation.resolved, self.framework.NAME)])

    def _list_gpus(self, hooks: Hooks) -> None:
        """List the pool, idlest first, and claim where that can't wait."""
        allocation, policy = self.allocation, self.policy
        if not hooks.found:
            # The environment has to make the choice, which the framework's context will not.
            self.visible.lists_chosen = True
            for name, value in self.framework.GROWTH_VARIABLES.items() if policy.growth else ():
                allocation.environ.setdefault(name, value)
        if not self.visible.is_written or not hooks.found:
            inventory = self.readings.wait(IMPORT_DEADLINE_S)
            self.visible.write(inventory)
            self.readings.prepare()
            if inventory and (policy.devices or policy.exclude) and policy.level != "quiet":
                allocation.say(unmatched_lists(allocation.resolved, inventory, self.visible.spec).values())
        if allocation.moment is Moment.IMPORT and allocation.taken is None:
            self._claim_before_cuda(NOTHING_SAID)

    # CUDA's start

    @_one_at_a_time
    def prepare(self, said: DeviceRequest = NOTHING_SAID) -> None:
        """Follow what was written into ``CUDA_VISIBLE_DEVICES``; claim, or begin to read the driver for the claim.

        The framework is about to initialise CUDA, or has done so: the last moment for the environment. One that takes
        what CUDA counts first tells what the script has ``said`` so far.
        """
        allocation = self.allocation
        # A framework that went without GPUs does not claim one again at each further look.
        if self._is_given_back or allocation.assigned_to:
            return
        has_fresh_reading = self.readings.is_pending
        is_listed_anew = self._follow_environment()
        if said.ordinal is None:
            self.visible.keep_order(self.readings.newest)
        if self.visible.may_have_gpus and not has_fresh_reading:
            self.readings.begin()
        if allocation.moment is not Moment.CONTEXT and (is_listed_anew or allocation.taken is None):
            self._claim_before_cuda(said)

    def _follow_environment(self) -> bool:
        """Follow what script and engine have written since; whether the GPUs are listed anew."""
        allocation, grant = self.allocation, self.allocation.grant
        inventory = self.readings.wait_or_replace(CONTEXT_DEADLINE_S)
        told = told_of_siblings(allocation.environ)
        # What a process that has its GPUs tells of ranks is for those that it starts, as Lightning's first one does.
        if is_engine_worker(allocation.environ) or (told != allocation.told and allocation.lease is None):
            allocation.told = told
            grant = self._granted_by_now()
        is_listed_anew = self.visible.refresh(inventory, grant)
        if is_listed_anew and allocation.decision is not None:
            allocation.decided(allocation.decision, is_listed=False)
        return is_listed_anew

    def _claim_before_cuda(self, said: DeviceRequest) -> None:
        """Choose and claim by the list that CUDA will read, and write that anew: the claimed GPUs first, or alone."""
        allocation, visible = self.allocation, self.visible
        inventory, pool = self.readings.newest, visible.candidates or visible.pool
        if inventory is None or not pool or allocation.cuda.visible_uuids() is not None or allocation.assigned_to:
            return
        if allocation.moment is Moment.CUDA_START and not visible.candidates:
            if self._keeps_order(said):
                return
            said = self._as_place(said)
        selection = self._selection_request(replace(said, gpu_count=len(pool)))
        if allocation.take(replace(selection, uuids=pool)).verdict is Verdict.TAKE:
            self._show_claimed(inventory, said.places or (said.ordinal or 0,))

    def _show_claimed(self, inventory: Inventory, places: Sequence[int]) -> None:
        """Let CUDA count the claimed GPUs first, or under the numbers that the script is about to use."""
        allocation, taken = self.allocation, self.allocation.taken
        assert taken is not None
        decision = taken.decision
        at = self.visible.show(inventory, decision, places, is_parents=taken.is_parents)
        if at and not taken.is_parents:
            names = listed([f"cuda:{place}" for place in at])
            decision = replace(decision, why=f"{decision.why}, as the script's {names}")
        allocation.decided(decision.counted_as(self.visible.pool), is_listed=True)
        allocation.tell_children()

    def _keeps_order(self, said: DeviceRequest) -> bool:
        """The list is not to be reordered: ranks index the script's list, named ordinals mean CUDA's order."""
        is_ranks_list = self.visible.spec.is_scripts and self.allocation.grant.rank is not None
        return said.visible is not None or is_ranks_list or self.visible.order is Order.WORKERS

    def _as_place(self, said: DeviceRequest) -> DeviceRequest:
        """With the number of a parent's child as a place in its parent's order, as long as that GPU is free."""
        number = said.ordinal or 0
        is_place = self.visible.order is Order.PARENTS and 0 < number < len(self.visible.pool)
        return replace(said, visible=(number,)) if is_place else said

    @_one_at_a_time
    def certain_gpu_count(self, built_for: tuple[int, int]) -> int | None:
        """How many GPUs CUDA will count for a framework that was ``built_for`` that version; nothing is claimed.

        ``None`` where only CUDA can tell, or where the policy may give the process none.
        """
        allocation = self.allocation
        is_begun = allocation.taken is not None or allocation.cuda.visible_uuids() is not None
        if is_begun or not _gives_a_gpu(self.policy):
            return None
        self._follow_environment()
        inventory, visible = self.readings.newest, self.visible
        if inventory is None or inventory.unreadable or visible.candidates or allocation.grant.is_none:
            return None
        if not visible.pool or not allocation.cuda.can_run(built_for):
            return None
        # Scripts ask again and again, and each time a process would be started.
        if visible.pool not in self._counted_elsewhere:
            self._counted_elsewhere[visible.pool] = allocation.cuda.count_elsewhere(allocation.environ)
        count = self._counted_elsewhere[visible.pool]
        return count if count == len(visible.pool) else None

    def on_listing(self) -> None:
        """The framework is about to start CUDA, only to list the GPUs.

        Claim now if another one takes what CUDA counts first: it would count the GPUs before the claim.
        """
        if self.allocation.wants_order:
            self.prepare()

    @_one_at_a_time
    def hide_where_none_is_taken(self) -> None:
        """Show CUDA no GPU, where the process is to take none and CUDA has not started."""
        allocation = self.allocation
        if allocation.assigned_to:
            return
        if allocation.taken is None and self.policy.count == 0 and self.visible.may_have_gpus:
            from autogpu.selection.decide import decide

            allocation.decided(decide(self._selection_request(NOTHING_SAID)))
        if allocation.decision is not None and allocation.decision.verdict is Verdict.CPU:
            self.visible.hide_all()

    @property
    def gpu_count(self) -> int | None:
        """How many GPUs CUDA counts, or will count by what the environment says; ``None`` if that is unknown."""
        uuids = self.allocation.uuids
        return None if uuids is None else len(uuids)

    def listing(self) -> Sequence[GpuListing] | None:
        """The GPUs that the framework sees, by CUDA ordinal; nothing is claimed and CUDA makes no context.

        ``()`` where the policy gives the process none, ``None`` where the driver does not tell.
        """
        allocation = self.allocation
        if self.policy.count == 0:
            return ()
        inventory = self.readings.wait(CONTEXT_DEADLINE_S)
        uuids, attributes = allocation.counted_uuids, allocation.cuda.attributes()
        if uuids is None or attributes is None:
            return None
        known = by_uuid(inventory.devices if inventory else ())
        devices = [known.get(uuid) for uuid in uuids]
        usable = usable_bytes(devices, self.framework.DEFAULT_SHARE)
        return [
            GpuListing(of_cuda, usable.get(ordinal, 0), (device.memory_total_bytes if device else None) or 0)
            for ordinal, (of_cuda, device) in enumerate(zip(attributes, devices))
        ]

    # The context

    @_one_at_a_time
    def assign(self, request: DeviceRequest) -> Assignment:
        """Decide among the GPUs that this process has, or join what was decided; later calls get the same answer."""
        # A script that names GPUs after it was told to go without has the last word.
        if self.assignment is None or (self.assignment.ordinals == () and request.visible):
            selection = self._selection_request(request)
            if self.framework.TAKES_FIRST_GPUS and not self._has_order:
                self._decision = self._leave_order(selection, request.ordinal or 0)
            else:
                self._decision = self._decide(selection)
            self._selection = selection
            self.assignment = self._assignment_of(request, selection, self._decision)
        return self.assignment

    def _selection_request(self, request: DeviceRequest) -> SelectionRequest:
        allocation, visible = self.allocation, self.visible
        inventory, uuids = self.readings.wait(CONTEXT_DEADLINE_S), allocation.uuids
        if inventory is not None and uuids is not None:
            uuids = tuple(counted_by_framework(uuids, request.gpu_count, inventory.devices))
        numbers = tuple(request.visible or ())
        selection = SelectionRequest(
            policy=self.policy,
            visible_spec=visible.spec,
            inventory=inventory,
            uuids=uuids,
            gpu_count=request.gpu_count,
            own_uid=os.getuid(),
            own_pid=os.getpid(),
            chosen=request.visible,
            named_count=request.named,
            asked_count=request.count,
            count_is_set=allocation.resolved.settings["select.count"].overrides is not None,
            grant=allocation.grant,
            learned=allocation.this_run.learned(inventory, visible.candidates or uuids or ()),
            in_use=[o for o in allocation.cuda.ordinals_in_use() if uuids is None or o < len(uuids)],
        )
        if visible.counts_places(numbers):
            selection = replace(selection, chosen=None, positions=numbers)
        wanted, said = min(selection.wanted_count, request.gpu_count), (request.limits, request.fraction)
        return replace(selection, script_demand=demand_of_script(*said, request.logical, wanted))

    def _decide(self, selection: SelectionRequest) -> Decision:
        """Choose and claim, on fresh readings; what was claimed before holds for every framework of the process."""
        if selection.chosen == ():
            # This framework goes without; that says nothing of the others.
            return left_alone(selection, CHOSEN_BY_SCRIPT)
        allocation, taken = self.allocation, self.allocation.taken
        is_first, uuids = not allocation.assigned_to, selection.uuids or ()
        from autogpu.acquire import covers

        if taken is not None and covers(taken, selection, is_assigned=not is_first):
            decision = allocation.decided(taken.decision.counted_as(uuids, selection.named))
        elif taken is not None and taken.lease is not None and not is_first:
            # Another framework has the claim, and this one's script has named other GPUs.
            decision = replace(
                taken.decision.counted_as(uuids, ()), verdict=Verdict.NOT_OUR_CHOICE, why=CHOSEN_BY_SCRIPT
            )
        else:
            decision = allocation.take(selection)
        allocation.assigned_to.add(self.framework.NAME)
        if is_first:
            engines.on_next_task(allocation.environ, self._tell_what_is_kept)
        return decision

    def _leave_order(self, selection: SelectionRequest, number: int) -> Decision:
        """Decide for a framework that takes what CUDA counts first; its script uses GPU ``number``, as CUDA counts."""
        allocation, uuids, rank = self.allocation, selection.uuids or (), selection.grant.rank
        why = order_is_fixed(self.policy)
        if allocation.decision is not None:
            return allocation.decision
        if self.visible.order is Order.WORKERS or not uuids:
            return left_alone(selection, why)
        number = rank.rank % len(uuids) if rank is not None else number if number < len(uuids) else 0
        alone = replace(selection, uuids=uuids[number : number + 1], gpu_count=1, count_is_set=True, promised=None)
        policy = replace(selection.policy, busy="share", wait_s=0.0, count=1, per_user=0)
        taken = allocation.take(replace(alone, policy=policy, grant=replace(selection.grant, rank=None)))
        if taken.verdict is Verdict.TAKE:
            taken = replace(taken, why=why + drawbacks(taken.ranking.candidates)).counted_as(uuids)
        elif taken.verdict is not Verdict.CANNOT_CHOOSE:
            taken = left_alone(selection, why)
        return allocation.decided(taken)

    @property
    def _has_order(self) -> bool:
        """CUDA counts first what this process was given; true before CUDA is initialised, and with one GPU."""
        taken, uuids = self.allocation.taken, self.allocation.cuda.visible_uuids()
        if uuids is None or len(uuids) < 2 or (taken is not None and taken.is_listed):
            return self.visible.order is not Order.WORKERS
        ordinals = taken.decision.ordinals if taken else ()
        return bool(ordinals) and ordinals == tuple(range(len(ordinals)))

    def _assignment_of(self, request: DeviceRequest, selection: SelectionRequest, decision: Decision) -> Assignment:
        policy = self.policy
        ordinals = decision.ordinals if decision.is_ours else request.visible or ()
        return Assignment(
            ordinals=ordinals if decision.is_ours else None,
            growth=True if policy.growth else None,
            caps=self._caps(decision, ordinals),
            logical_gpus=self._logical_gpus,
            moved=decision.moved,
            ceilings=ceilings(decision, selection),
            usable=usable_bytes(decision.visible, self.framework.DEFAULT_SHARE),
            totals={o: d.memory_total_bytes for o, d in enumerate(decision.visible) if d and d.memory_total_bytes},
        )

    def _caps(self, decision: Decision, ordinals: Sequence[int]) -> Mapping[int, Cap]:
        allocation, policy, reserves = self.allocation, self.policy, {}
        if policy.limit is not None and policy.limit_includes == "process" and ordinals:
            with allocation.cuda.primary_contexts(ordinals):
                inventory = self.readings.take()
            measured = own_memory_bytes(inventory, allocation.counted_uuids or (), os.getpid())
            reserves = {ordinal: context_reserve_bytes(measured.get(ordinal)) for ordinal in ordinals}
        share = self.framework.DEFAULT_SHARE
        return caps(policy, decision, reserves, default_share=share, parts=self._logical_gpus)

    @property
    def _logical_gpus(self) -> int:
        return self.policy.virtual_gpus if self.framework.HAS_LOGICAL_GPUS else 1

    # What the framework tells afterwards

    def on_usage(self, usage: Usage) -> None:
        """Say which GPUs the process takes, and why; for the first framework that takes some, or none so far.

        The framework has settled what it takes.
        """
        allocation, takes_some = self.allocation, bool(usage.ordinals)
        if takes_some:
            self.reports.begin(usage, self._selection, self.assignment)
        if takes_some in allocation.reported or True in allocation.reported:
            return
        allocation.reported.add(takes_some)
        inventory = self.readings.wait(CONTEXT_DEADLINE_S)
        if self._decision is None:
            self._decide_of_hidden_pool(inventory)
        if not takes_some:
            self._is_given_back |= self._give_back() and self.framework.WANTS_ORDER
        self.reports.usage(usage, self._decision, inventory)

    @_one_at_a_time
    def _decide_of_hidden_pool(self, inventory: Inventory | None) -> None:
        """Decide what becomes of a process that sees no GPU because of the policy, or of what denies them all."""
        from autogpu.acquire import raise_if_refused
        from autogpu.selection.decide import decide

        allocation, pool = self.allocation, self.visible.hidden_pool
        # Where a cgroup denies every GPU there is nothing to hide.
        is_denied = allocation.grant.is_none and inventory is not None and not inventory.failure
        if allocation.taken is None and (pool or is_denied):
            selection = replace(self._selection_request(DeviceRequest(len(pool))), uuids=pool)
            raise_if_refused(allocation.decided(decide(selection)))

    def on_unused(self) -> None:
        """The framework goes without the GPUs that it was given, for a reason of its own."""
        if self._give_back():
            self.assignment = self._decision = None
            self._is_given_back = True

    @_one_at_a_time
    def _give_back(self) -> bool:
        """End the claim, unless it is another framework's too; whether that was done."""
        allocation, decision, wants_order = self.allocation, self.allocation.decision, self.framework.WANTS_ORDER
        is_others = bool(allocation.assigned_to - {self.framework.NAME}) or (allocation.wants_order and not wants_order)
        if decision is None or allocation.lease is None or is_others or allocation.cuda.ordinals_in_use():
            return False
        allocation.release()
        if wants_order:
            allocation.assigned_to.clear()
        else:
            allocation.decided(decision)
        return True

    @_one_at_a_time
    def on_workers(self, count: int) -> str:
        """The program is about to start ``count`` processes by one call, of which each is to have a GPU.

        Names this start, for the workers to choose together; ``""`` where each chooses for itself.
        """
        allocation, taken = self.allocation, self.allocation.taken
        is_own_choice = self.visible.spec.is_scripts or self.policy.visible == "chosen"
        if allocation.grant.rank is not None or is_own_choice or allocation.cuda.ordinals_in_use():
            return ""
        if not 2 <= count <= self._most_workers():
            return ""
        # What the process has claimed itself and does not use is for them.
        if taken is not None and taken.lease is not None and (taken.is_parents or not self._give_back()):
            return ""
        if allocation.taken is None:
            self.assignment = self._decision = None
        return f"workers.{os.getpid()}.{os.urandom(8).hex()}"

    def _most_workers(self) -> int:
        inventory = self.readings.newest
        known = by_uuid(inventory.devices if inventory else ())
        pool = [known[uuid] for uuid in self.allocation.uuids or () if uuid in known]
        # One list names cards or instances, and each worker counts by its list up to its own number.
        return len(instances.cards(pool) or pool)

    def on_replicas(self, strategy: str, replicas: int) -> None:
        """A ``strategy`` that was not told which GPUs to use has made that many replicas.

        Report how to get more, where the policy is why there are so few.
        """
        allocation, decision = self.allocation, self.allocation.decision
        if decision and decision.verdict is Verdict.TAKE and self.policy.level != "quiet":
            allocation.say(messages.few_replicas(strategy, replicas, decision, self.policy.per_user))

    def on_unsupported(self, why: str) -> None:
        """The framework's GPUs are none that autogpu knows; the policy is not applied."""
        self.allocation.say([f"policy not applied: {why}; {self.framework.NAME} continues with its defaults"])

    def _granted_by_now(self) -> Grant:
        return engines.granted_here(self.visible.environ_without_ours(), self.visible.started_with)

    def _tell_what_is_kept(self) -> None:
        """Say once that another task of this worker was given what a framework can't follow any more."""
        allocation, visible = self.allocation, self.visible
        with allocation.guard():
            grant = self._granted_by_now()
            now = messages.granted(grant, visible.named(grant))
            before = messages.granted(allocation.grant, visible.spec.value)
            if now != before and not self._has_told_what_is_kept and self.policy.level != "quiet":
                self._has_told_what_is_kept = True
                allocation.say_in_each_rank(
                    f"{grant.engine} gives {now} to {grant.task or 'this task'}, whose worker process keeps {before} "
                    "from an earlier one; to have a process for each task: max_calls=1"
                )


def _gives_a_gpu(policy: Policy) -> bool:
    """Any process is given one, among all of the pool; where none is free these two end at one, sooner or later."""
    return (
        policy.count != 0
        and policy.busy in ("share", "wait")
        and policy.need_bytes is None
        and policy.visible == "pool"
    )
