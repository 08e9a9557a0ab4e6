"""The interface between autogpu and a framework. A framework's package derives a class from :class:`HookedFramework`.

The derived class implements the abstract methods of :class:`Framework`. Its hooks call these methods inside
``guard()``: ``prepare``, ``assign`` and ``on_usage``, in this order; ``on_listing`` and ``listing`` if the framework
lists GPUs before it uses one; ``on_unused`` if it uses no GPU.
"""

from __future__ import annotations

import functools
import os
import sys
from itertools import takewhile
from types import FrameType
from typing import Any, Callable, ContextManager, Mapping, Sequence

from autogpu import process, stderr, uncaught
from autogpu.caps import Cap
from autogpu.devices.model import NO_READING, Inventory, by_uuid
from autogpu.errors import raise_if_from_script
from autogpu.frameworks.memory import caps, ceilings, context_reserve_bytes, usable_bytes
from autogpu.frameworks.model import NOTHING_SAID, Assignment, DeviceRequest, Framework, GpuListing, Hooks, Usage
from autogpu.frozen import Value
from autogpu.reporting import choice
from autogpu.reporting import frameworks as framework_messages
from autogpu.selection.decision import Decision, Verdict
from autogpu.selection.jobs import own_memory_bytes
from autogpu.selection.model import SelectionRequest
from autogpu.selection.visible_devices import NoGpu, why_no_gpu

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.allocation import Allocation


# An attribute that marks a hooked function.
_HOOKED = "_autogpu_hooked"


def hooked(original: Any, hook: Callable[..., Any], *state: object) -> Any:
    """Wrap ``original``: a call becomes ``hook(original, *state, *arguments)``."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return hook(original, *state, *args, **kwargs)

    setattr(call, _HOOKED, True)
    return call


def is_hooked(function: Any) -> bool:
    return _HOOKED in getattr(function, "__dict__", {})


def put_back(holder: Any, name: str, original: Any) -> None:
    """Remove the hook from a function of a module or class, unless somebody else has replaced the function since."""
    if getattr(holder.__dict__.get(name), "__wrapped__", None) is original:
        setattr(holder, name, original)


def part_of(fraction: Any) -> float:
    """Return the part of a GPU that a script has set, 0 to 1; 0 for an invalid value, which the framework reports."""
    try:
        return min(max(float(fraction), 0.0), 1.0)
    except (TypeError, ValueError) as error:
        raise_if_from_script(error)
        return 0.0


def caller_named(name: str) -> FrameType | None:
    """Return the innermost frame of a function called ``name`` on the stack; ``None`` if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != name:
        frame = frame.f_back
    return frame


class _Assigned(Value):
    """The assignment of a framework, and the request and the decision from which it was made."""

    request: SelectionRequest
    decision: Decision
    assignment: Assignment


class HookedFramework(Framework):
    """A framework in this process, with the methods that its hooks call.

    Attributes:
        guard: A context manager around every step of autogpu. It reports an error once and lets the framework continue
            with its defaults. It passes on :class:`autogpu.errors.NoEligibleDevice` and ``SystemExit``, which a policy
            asks for.
        lock: Protects the attributes, because a script may use the framework in two threads.
    """

    def __init__(self, begin: Callable[[], Allocation], guard: Callable[[], ContextManager[None]]) -> None:
        """Access no GPU yet.

        Args:
            begin: Returns the allocation of this process. The first call makes the allocation.
        """
        self._begin = begin
        self._allocation: Allocation | None = None
        self._listing = process.OncePerProcess()
        self.guard = guard
        self.lock = process.fork_safe_rlock(self)
        self._assigned: _Assigned | None = None
        self._is_given_back = False
        self._watching_pid: int | None = None

    # The allocation of the process

    @property
    def allocation(self) -> Allocation:
        """The allocation that all frameworks of the process share. Frameworks in ``LATE`` join it at first use."""
        if not self._listing.is_done:
            with self.lock:
                self._list(self._joined(), self.find_hooks())
        return self._joined()

    def _joined(self) -> Allocation:
        return self._allocation or self.join(self._begin())

    def join(self, allocation: Allocation) -> Allocation:
        self._allocation = allocation
        allocation.join(self)
        return allocation

    # The import

    def imported(self) -> None:
        """Hook into the framework, whose modules have just been imported. It has not initialised CUDA yet."""
        hooks = self.find_hooks()
        if hooks.found:
            self.install_hooks(hooks)
        # A framework in LATE has not joined the allocation yet. It joins now only if there is something to report.
        if self._allocation is not None or not hooks.found:
            self._list(self._joined(), hooks)

    def _list(self, allocation: Allocation, hooks: Hooks) -> None:
        self._listing.run(lambda: self._order_gpus(allocation, hooks))

    def _order_gpus(self, allocation: Allocation, hooks: Hooks) -> None:
        if not hooks.found and not hooks.missing:
            # A framework may import another one that is merely installed. Print nothing about that one.
            if allocation.frameworks[0] == self.NAME:
                allocation.readings.close()  # another framework begins a new reading
                if hooks.obstacle:
                    self.on_unsupported(hooks.obstacle)
            return
        if hooks.found:
            allocation.list_gpus(wants_order=self.WANTS_ORDER)
        else:
            allocation.list_choice(hooks.variables)
        if self.TAKES_FIRST_GPUS and allocation.policy.count == 0:
            # The framework's C++ may start CUDA without calling a hook.
            allocation.hide_gpus_if_cpu_only()
        if hooks.missing and allocation.visible.may_have_gpus:
            allocation.say([framework_messages.hooks_missing(hooks, allocation.resolved, self.NAME)])

    # CUDA's start

    def prepare(self, said: DeviceRequest = NOTHING_SAID) -> None:
        """Prepare for CUDA's start: CUDA is about to read the environment, or has read it.

        Args:
            said: The script's request so far. Only a framework that uses the GPUs that CUDA counts first passes it.
        """
        # A framework that has given its GPUs back does not claim again each time the script lists GPUs.
        if not self._is_given_back:
            self.allocation.prepare(said)

    def on_listing(self) -> None:
        """Claim if the list of GPUs depends on the claim: the framework is about to start CUDA only to list them."""
        if self.allocation.claims_before_cuda:
            self.prepare()

    @property
    def gpu_count(self) -> int | None:
        """The number of GPUs that CUDA counts, or will count with this environment; ``None`` if that is unknown."""
        uuids = self.allocation.uuids
        return None if uuids is None else len(uuids)

    def listing(self) -> Sequence[GpuListing] | None:
        """Return the GPUs that the framework sees, in CUDA's order. Claim nothing and make no context.

        Returns:
            ``()`` if the policy allows the process no GPU; ``None`` if the driver does not answer.
        """
        allocation = self.allocation
        if allocation.policy.count == 0:
            return ()
        inventory = allocation.inventory
        uuids = allocation.counted_uuids
        attributes = allocation.cuda.attributes()
        if uuids is None or attributes is None:
            return None
        known = by_uuid(inventory.devices if inventory else ())
        devices = [known.get(uuid) for uuid in uuids]
        usable = usable_bytes(devices, self.default_share)
        return [
            GpuListing(of_cuda, usable.get(ordinal, 0), (device.memory_total_bytes if device else None) or 0)
            for ordinal, (of_cuda, device) in enumerate(zip(attributes, devices))
        ]

    # The context

    def assign(self, request: DeviceRequest) -> Assignment:
        """Return the GPUs of the framework. The first call claims them, or shares another framework's claim."""
        allocation = self.allocation
        with allocation.lock:
            # If the framework was assigned no GPU and the script then lists GPUs, the script wins.
            assigned = self._assigned
            if assigned is None or (assigned.assignment.ordinals == () and request.visible):
                selection = allocation.selection_request(request)
                decision = self.decide(selection, request.places)
                assigned = _Assigned(selection, decision, self._assignment_of(request, selection, decision))
                self._assigned = assigned
            return assigned.assignment

    @property
    def assignment(self) -> Assignment | None:
        """The GPUs that the framework was assigned; ``None`` until :meth:`assign` is called."""
        return self._assigned.assignment if self._assigned else None

    @property
    def own_decision(self) -> Decision | None:
        """The decision about the framework's own request; ``None`` until :meth:`assign` is called."""
        return self._assigned.decision if self._assigned else None

    def decide(self, selection: SelectionRequest, places: Sequence[int]) -> Decision:
        """Choose GPUs and claim them; ``places`` are the GPU numbers that the script is about to use."""
        return self.allocation.decide_and_claim(selection, self.NAME)

    def _assignment_of(self, request: DeviceRequest, selection: SelectionRequest, decision: Decision) -> Assignment:
        policy = self.allocation.policy
        ordinals = decision.ordinals if decision.is_ours else request.visible or ()
        parts = policy.virtual_gpus if self.HAS_LOGICAL_GPUS else 1
        return Assignment(
            ordinals=ordinals if decision.is_ours else None,
            growth=True if policy.growth else None,
            caps=self._caps(decision, ordinals, parts),
            logical_gpus=parts,
            moved=decision.numbering,
            ceilings=ceilings(decision, selection),
            usable=usable_bytes(decision.visible, self.default_share),
            totals={o: d.memory_total_bytes for o, d in enumerate(decision.visible) if d and d.memory_total_bytes},
        )

    def _caps(self, decision: Decision, ordinals: Sequence[int], parts: int) -> Mapping[int, Cap]:
        allocation = self.allocation
        policy = self.allocation.policy
        reserves = {}
        if policy.limit is not None and policy.limit_includes == "process" and ordinals:
            with allocation.cuda.primary_contexts(ordinals):
                devices = (allocation.readings.take() or NO_READING).devices
            measured = own_memory_bytes(devices, allocation.counted_uuids or (), os.getpid())
            reserves = {ordinal: context_reserve_bytes(measured.get(ordinal)) for ordinal in ordinals}
        return caps(policy, decision, reserves, default_share=self.default_share, parts=parts)

    # Events after the choice

    def on_usage(self, usage: Usage) -> None:
        """Print which GPUs the process uses, and why. The framework calls this when its GPUs are settled.

        Only the first framework that uses GPUs prints its line. Before it, one framework that uses no GPU may print a
        line, too.
        """
        allocation = self.allocation
        takes_some = bool(usage.ordinals)
        if takes_some:
            self._watch(usage)
        if not allocation.begin_report(takes_some=takes_some):
            return
        inventory = allocation.inventory
        if self._assigned is None:
            allocation.decide_of_hidden_pool(inventory)
        if not takes_some:
            self._is_given_back |= allocation.give_back(self) and self.WANTS_ORDER
        allocation.say_of_job(self._lines(usage, inventory))

    def _watch(self, usage: Usage) -> None:
        """Have the framework's peak recorded when the process ends, and watch for an out-of-memory error until then."""
        allocation = self.allocation
        caps_of_ours = self.assignment.caps if self.assignment else {}
        is_limited = self._is_limited_by_script or not caps_of_ours.keys().isdisjoint(usage.ordinals)
        decision = self.own_decision or allocation.decision
        devices = decision.at(usage.ordinals) if decision else ()
        allocation.this_run.uses(self, devices, is_limited=is_limited)
        if allocation.policy.level != "quiet" and self._watching_pid != os.getpid():
            self._watching_pid = os.getpid()
            uncaught.watch(self.on_uncaught)

    @property
    def cap_bytes(self) -> int:
        assignment = self.assignment
        if assignment is None or self._is_limited_by_script:
            return 0
        caps = [cap.bytes for ordinal, cap in assignment.caps.items() if ordinal in (assignment.ordinals or ())]
        return min(caps, default=0)

    @property
    def _is_limited_by_script(self) -> bool:
        return self._assigned is not None and self._assigned.request.script_demand is not None

    def _lines(self, usage: Usage, inventory: Inventory | None) -> list[str]:
        allocation = self.allocation
        own = self.own_decision
        decision = own or allocation.decision
        task = allocation.grant.task
        if decision is None:
            lines = self._lines_without_gpu(inventory)
        else:
            need = None
            if own is not None and own.verdict is Verdict.TAKE:
                need = allocation.this_run.need_worth_stating(own.devices, by_script=self._is_limited_by_script)
            lines = choice.outcome(decision, usage, allocation.resolved, self.NAME, task, need)
        if allocation.policy.level == "quiet":
            return lines
        return [*lines, *self._lines_about_late_list()]

    def _lines_without_gpu(self, inventory: Inventory | None) -> list[str]:
        allocation = self.allocation
        visible = allocation.visible
        why = why_no_gpu(visible, inventory, allocation.policy)
        # A quiet policy keeps the line about a fault of the machine.
        if allocation.policy.level == "quiet" and why is not NoGpu.DRIVER_FAILURE:
            return []
        return framework_messages.sees_no_gpu(why, visible.spec.value, inventory or NO_READING, self.NAME)

    def _lines_about_late_list(self) -> list[str]:
        """Return a line if the script has set ``CUDA_VISIBLE_DEVICES`` after CUDA had read it; else ``[]``."""
        allocation = self.allocation
        if allocation.gpu_list.has_changed and allocation.cuda.visible_uuids() is not None:
            now, _ = allocation.visible.found_now(allocation.environ)
            return [framework_messages.set_too_late(now or "", self.NAME)]
        return []

    def on_uncaught(self, error: BaseException) -> None:
        """Print why a GPU's memory ran out, if that is the cause of the error that ended the script or a cell."""
        of_this_process = takewhile(lambda each: not uncaught.is_of_another_process(each), uncaught.chain(error))
        found = next(filter(None, map(self.out_of_memory, of_this_process)), None)
        if found is not None and self._assigned is not None:
            from autogpu.out_of_memory import exhaustion
            from autogpu.reporting.out_of_memory import out_of_memory

            allocation = self.allocation
            facts = exhaustion(found, self, allocation, self._assigned.request, self._assigned.assignment)
            if facts is not None and allocation.decision is not None:
                lines = out_of_memory(
                    facts,
                    limit_origin=str(allocation.resolved.settings["memory.limit"].origin),
                    idle_remedy=choice.idle_remedy(allocation.decision),
                    locked=allocation.policy.locked,
                )
                stderr.forget()
                allocation.say_in_each_rank("\nautogpu: ".join(lines))  # in one write: other ranks print as well

    def on_unused(self) -> None:
        """Release the claim, because the framework does not use the GPUs that it was assigned."""
        if self.allocation.give_back(self):
            self.forget_assignment()
            self._is_given_back = True

    def forget_assignment(self) -> None:
        self._assigned = None

    def on_replicas(self, strategy: str, replicas: int) -> None:
        """Print how to get more replicas, if the policy limits the replicas of a ``strategy``.

        Call this only for a strategy to which the script has passed no devices.
        """
        allocation = self.allocation
        policy = allocation.policy
        decision = allocation.decision
        if decision and decision.verdict is Verdict.TAKE and policy.level != "quiet":
            allocation.say(framework_messages.few_replicas(strategy, replicas, decision, policy.per_user))

    def on_spreading(self, library: str) -> None:
        """Print which unclaimed GPUs a ``library`` is about to use, because it uses every GPU that it sees."""
        decision = self.allocation.decision
        if decision is not None and decision.verdict is Verdict.TAKE and self.allocation.policy.level != "quiet":
            self.allocation.say(framework_messages.spreading(library, decision))

    def on_late_name(self, number: int, taken: int) -> None:
        self._say_unless_quiet(framework_messages.late_name(number, taken, self.NAME))

    def on_late_replicas(self, strategy: str, replicas: int, wanted: int, taken: int) -> None:
        self._say_unless_quiet(framework_messages.late_replicas(strategy, replicas, wanted, taken, self.NAME))

    def _say_unless_quiet(self, line: str) -> None:
        if self.allocation.policy.level != "quiet":
            self.allocation.say([line])

    def on_unsupported(self, why: str) -> None:
        self.allocation.say([framework_messages.unsupported(why, self.NAME)])
