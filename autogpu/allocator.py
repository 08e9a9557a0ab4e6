"""What the hooks of one framework call: the decision of the process, as this framework is to carry it out."""

from __future__ import annotations

from autogpu.devices import cuda as loaded_cuda
from autogpu.devices.model import by_uuid
from autogpu.frameworks.base import Assignment, GpuListing
from autogpu.reporting import messages
from autogpu.selection.memory import caps, context_reserve_bytes, usable_bytes
from autogpu.selection.model import Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ContextManager, Mapping, Sequence

    from autogpu.allocation import Allocation
    from autogpu.devices.model import CudaDriver
    from autogpu.frameworks.base import DeviceRequest, Framework, Usage
    from autogpu.selection.model import Decision, SelectionRequest


class Allocator:
    """A :class:`autogpu.frameworks.base.GpuAllocator` of one framework, among those that a process may use.

    Attributes:
        framework: Whose hooks call.
        assignment: What the framework was given; ``None`` until it asked.
    """

    def __init__(self, allocation: Allocation, framework: Framework, cuda: CudaDriver = loaded_cuda) -> None:
        """The framework is about to be imported.

        Args:
            cuda: The CUDA driver that it loads.
        """
        self.framework = framework
        self.assignment: Assignment | None = None
        self._allocation = allocation
        self._cuda = cuda
        self._decision: Decision | None = None
        self._is_given_back = False
        self._context_reserves: Mapping[int, int] = {}
        self._has_context = False
        allocation.begin_import(framework)

    def imported(self) -> None:
        """The framework's modules are there: hook into them."""
        self._allocation.imported(self.framework, self.framework.install_hooks(self))

    def guard(self) -> ContextManager[None]:
        """See :meth:`autogpu.frameworks.base.GpuAllocator.guard`."""
        return self._allocation.guard()

    def prepare(self, said: DeviceRequest | None = None) -> None:
        """Let what is written into the environment be what CUDA is to read."""
        # A framework that went without GPUs does not claim one again at each further look.
        if not self._is_given_back:
            self._allocation.prepare(said)

    def certain_gpu_count(self, built_for: tuple[int, int]) -> int | None:
        """See :meth:`autogpu.frameworks.base.GpuAllocator.certain_gpu_count`."""
        return self._allocation.certain_gpu_count(built_for)

    def on_listing(self) -> None:
        """Claim now if another framework takes what CUDA counts first: it would count the GPUs before the claim."""
        if self._allocation.needs_order:
            self.prepare()

    def hide_where_none_is_taken(self) -> None:
        """See :meth:`autogpu.frameworks.base.GpuAllocator.hide_where_none_is_taken`."""
        self._allocation.hide_where_none_is_taken()

    @property
    def gpu_count(self) -> int | None:
        """See :meth:`autogpu.frameworks.base.GpuAllocator.gpu_count`."""
        uuids = self._allocation.uuids
        return None if uuids is None else len(uuids)

    def assign(self, request: DeviceRequest) -> Assignment:
        """Decide among the GPUs that this process has, or join what was decided."""
        # A script that names GPUs after it was told to go without has the last word.
        if self.assignment is None or (self.assignment.ordinals == () and request.visible):
            selection = self._allocation.selection_request(request)
            if self.framework.TAKES_FIRST_GPUS and not self._allocation.has_order:
                decision = self._allocation.leave_order(selection)
            else:
                decision = self._allocation.decide(selection, self.framework)
            self._decision = decision
            self.assignment = self._assignment(request, selection, decision)
        return self.assignment

    def _assignment(self, request: DeviceRequest, selection: SelectionRequest, decision: Decision) -> Assignment:
        policy = self._allocation.policy
        ordinals = decision.ordinals if decision.is_ours else request.visible or ()
        return Assignment(
            ordinals=ordinals if decision.is_ours else None,
            growth=True if policy.growth else None,
            caps=self._caps(decision, ordinals),
            logical_gpus=policy.virtual_gpus,
            moved=decision.moved,
            ceilings=_ceilings(decision, selection),
            usable=usable_bytes(decision.visible, self.framework.DEFAULT_SHARE),
            totals={o: d.memory_total_bytes for o, d in enumerate(decision.visible) if d and d.memory_total_bytes},
        )

    def _caps(self, decision: Decision, ordinals: Sequence[int]) -> Mapping[int, int]:
        policy = self._allocation.policy
        if policy.limit is not None and policy.limit_includes == "process" and ordinals:
            with self._cuda.primary_contexts(ordinals):
                measured = self._allocation.measure()
            self._context_reserves = {o: context_reserve_bytes(measured.get(o)) for o in ordinals}
        return caps(policy, decision, self._context_reserves, default_share=self.framework.DEFAULT_SHARE)

    def listing(self) -> Sequence[GpuListing] | None:
        """What the framework would list, without a context and without a claim."""
        if self._allocation.policy.count == 0:
            return ()
        inventory = self._allocation.wait_for_reading()
        uuids, attributes = self._allocation.counted_uuids, self._cuda.attributes()
        if uuids is None or attributes is None:
            return None
        known = by_uuid(inventory.devices if inventory else ())
        devices = [known.get(uuid) for uuid in uuids]
        usable = usable_bytes(devices, self.framework.DEFAULT_SHARE)
        return [
            GpuListing(of_cuda, usable.get(ordinal, 0), (device.memory_total_bytes if device else None) or 0)
            for ordinal, (of_cuda, device) in enumerate(zip(attributes, devices))
        ]

    def on_usage(self, usage: Usage) -> None:
        """Say which GPUs the process takes, and why; for the first framework that takes some, or none so far."""
        allocation = self._allocation
        takes_some = bool(usage.ordinals)
        if takes_some in allocation.reported or True in allocation.reported:
            return
        allocation.reported.add(takes_some)
        if self._decision is None:
            allocation.report_hidden_pool()
        if not takes_some:
            self._is_given_back |= allocation.give_back(self.framework) and self.framework.WANTS_ORDER
        decision = self._decision or allocation.decision
        inventory, name = allocation.wait_for_reading(), self.framework.NAME
        allocation.say(messages.outcome(decision, usage, allocation.resolved, inventory, name, allocation.grant.task))
        if allocation.ignored_value is not None and allocation.policy.level != "quiet":
            allocation.say([messages.visible_devices_ignored(allocation.ignored_value, name)])

    def on_context(self) -> None:
        """Report what a context really costs, where that matters or is asked."""
        allocation, decision, is_first = self._allocation, self._allocation.decision, not self._has_context
        self._has_context = True
        is_asked = allocation.policy.level == "explain"
        if not is_first or decision is None or self.assignment is None or not (is_asked or self._context_reserves):
            return
        # At this moment only: once the script allocates, its own memory and the context's can't be told apart.
        measured, reserves = allocation.measure(), self._context_reserves
        name = self.framework.NAME
        allocation.say(messages.context_memory(decision, self.assignment, measured, reserves, name, is_asked=is_asked))

    def on_unused(self) -> None:
        """Give back what no framework uses."""
        if self._allocation.give_back(self.framework):
            self.assignment = self._decision = None
            self._is_given_back = True

    def on_workers(self, count: int) -> str:
        """See :meth:`autogpu.frameworks.base.GpuAllocator.on_workers`."""
        job = self._allocation.begin_workers(count, self.framework)
        if self._allocation.lease is None and self._allocation.decision is None:
            self.assignment = self._decision = None
        return job

    def on_replicas(self, strategy: str, replicas: int) -> None:
        """Report how to get more replicas, where the policy is why there are so few."""
        allocation, decision = self._allocation, self._allocation.decision
        if decision and decision.verdict is Verdict.TAKE and allocation.policy.level != "quiet":
            allocation.say(messages.few_replicas(strategy, replicas, decision, allocation.policy.per_user))

    def on_unsupported(self, why: str) -> None:
        """Report that the policy is not applied, and why; the framework continues with its defaults."""
        self._allocation.leave_alone(why, self.framework)


def _ceilings(decision: Decision, selection: SelectionRequest) -> Mapping[int, int]:
    """What a limit of the script's own may not exceed."""
    if not selection.script_demand:
        return {}
    # Ranks that share a GPU are of one job, and so is what their script says.
    return decision.ceilings if selection.grant.rank is None else decision.granted
