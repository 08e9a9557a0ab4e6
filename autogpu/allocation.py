"""One process on its way from the import of a framework to its GPUs: calls the packages in order."""

from __future__ import annotations

import enum
import os
import sys

from autogpu import engines
from autogpu.devices import cuda as loaded_cuda
from autogpu.devices import probe
from autogpu.devices.model import by_uuid
from autogpu.frameworks.base import Assignment, DeviceRequest, GpuListing
from autogpu.frozen import replace
from autogpu.reporting import messages, stderr
from autogpu.reporting.waiting import WaitingReport
from autogpu.selection.grants import is_engine_worker
from autogpu.selection.memory import (
    CONTEXT_BYTES,
    caps,
    context_reserve_bytes,
    demand_of,
    memory_demand,
    script_demand,
    usable_bytes,
)
from autogpu.selection.model import SelectionRequest, Verdict
from autogpu.selection.occupancy import own_memory_bytes
from autogpu.selection.ranks import TF_CONFIG
from autogpu.variables import LEASE
from autogpu.visibility import VisibleDevices

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, ContextManager, Iterable, Literal, Mapping, MutableMapping, Sequence

    from autogpu.devices.model import CudaDriver, DeviceReader, Inventory, Reading
    from autogpu.frameworks.base import Framework, Usage
    from autogpu.lease import Lease
    from autogpu.policy import Resolved
    from autogpu.selection.grants import Grant
    from autogpu.selection.model import Decision

# Counted from the reading's start. An import takes about as long, so a driver that hangs delays nothing here.
IMPORT_DEADLINE_S = 5.0

# When the context is made a reading is worth waiting for: without persistence mode NVML's start takes seconds.
CONTEXT_DEADLINE_S = 10.0

# Where that is over: the machine may have been busy with the import, or the process be a fork of the one that read.
_SECOND_CHANCE_S = 3.0

# In a lease all of a GPU, where it is unknown how much that is; readers cut it to what it has.
_ALL_BYTES = 1 << 50


class State(enum.Enum):
    """How far a process has come."""

    IMPORTING = "the framework is being imported, and the first reading is under way"
    NOT_APPLIED = "the framework is left alone"
    IMPORTED = "hooks are in place, and nothing is claimed"
    ASSIGNED = "GPUs are chosen, and leased"
    IN_USE = "the framework has contexts"


class Allocation:
    """The GPUs of one process: a :class:`autogpu.frameworks.base.GpuAllocator`.

    Attributes:
        guard: Around every step of ours.
        state: How far it has come.
        assignment: What the framework was given; ``None`` until it asked.
        decision: Why; ``None`` until then.
        lease: What the process holds; ``None`` where nothing is claimed.
    """

    def __init__(
        self,
        framework: Framework,
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
            cuda: The CUDA driver that the framework loads.
            say: Prints one line for the user.
        """
        self.guard = guard
        self.state = State.IMPORTING
        self.assignment: Assignment | None = None
        self.decision: Decision | None = None
        self.lease: Lease | None = None
        self._framework = framework
        self._resolved = resolved
        self._policy = resolved.policy
        self._environ = environ
        self._cuda = cuda
        self._print = say
        self._readings = _Readings(reader, environ, first_reading)
        self._visible = VisibleDevices(resolved.policy, environ, started_with, cuda, grant)
        self._cluster = environ.get(TF_CONFIG)
        # Without the hooks for a choice at the context, the environment has to make it.
        self._visible_at_first: Literal["pool", "chosen"] = "pool"
        self._is_reported = False
        self._demand = memory_demand(resolved.policy)
        self._context_reserves: Mapping[int, int] = {}
        self._contexts: tuple[int, ...] = ()
        self._reserved: frozenset[str] = frozenset()

    def imported(self) -> None:
        """The framework's modules are there and CUDA is not initialised yet."""
        hooks = self._framework.install_hooks(self)
        if hooks.obstacle:
            self.on_unsupported(hooks.obstacle)
            self._readings.close()
            return
        if not hooks.has_essential:
            self._visible_at_first = "chosen"
            self._environ.update(self._framework.fallback_environment(self._environ, self._policy.growth))
        inventory = self._readings.wait(IMPORT_DEADLINE_S)
        self._visible.write(inventory, self._visible_at_first)
        self._readings.prepare()
        self.state = State.IMPORTED
        self._hide_all_but_claimed(inventory)
        if inventory and (self._policy.devices or self._policy.exclude) and self._policy.level != "quiet":
            from autogpu.selection.lists import unmatched_lists

            self._say(unmatched_lists(self._resolved, inventory.devices, self._visible.spec).values())
        if hooks.missing and self._visible.may_have_gpus and inventory and inventory.devices:
            self._say([messages.hooks_missing(hooks, self._resolved, self._framework.NAME)])

    def prepare(self) -> None:
        """Follow what the script has written into ``CUDA_VISIBLE_DEVICES``, and begin to read the driver afresh."""
        if self.assignment is not None:
            return
        is_fresh = self._readings.is_pending
        inventory, grant = self._readings.wait_or_replace(CONTEXT_DEADLINE_S), self._visible.grant
        if is_engine_worker(self._environ) or self._environ.get(TF_CONFIG) != self._cluster:
            self._cluster = self._environ.get(TF_CONFIG)
            grant = engines.granted_here(self._visible.environ_without_ours())
        if self._visible.refresh(inventory, grant, self._visible_at_first):
            self._hide_all_but_claimed(inventory)
        if self._visible.may_have_gpus and not is_fresh:
            self._readings.begin()

    def _hide_all_but_claimed(self, inventory: Inventory | None) -> None:
        """For ``visible = "chosen"``: what is hidden from every library has to be claimed first, before CUDA starts.

        Where no GPU is taken the decision is left to the context.
        """
        pool = self._visible.pool
        if self._policy.visible != "chosen" or self._visible_at_first == "chosen" or not pool or inventory is None:
            return
        if self._visible.grant.rank is not None or self._cuda.visible_uuids() is not None:
            return
        if self.lease is not None:
            self.lease.release()  # the script has listed others since
        self._acquire(replace(self._selection_request(DeviceRequest(len(pool))), uuids=pool))
        if self.decision and self.decision.verdict is Verdict.TAKE:
            self._visible.narrow(inventory, self.decision.devices)

    def _keeps_claim(self, selection: SelectionRequest) -> bool:
        """Whether what was claimed at the import is what this process has."""
        return self.lease is not None and bool(selection.uuids) and set(selection.uuids or ()) <= set(self.lease.claims)

    def assign(self, request: DeviceRequest) -> Assignment:
        """Choose and claim among the GPUs that this process has, on fresh readings."""
        # A script that names GPUs after it was told to go without has the last word.
        if self.assignment is None or (self.assignment.ordinals == () and request.visible):
            selection = self._selection_request(request)
            if self.decision is not None and self._keeps_claim(selection):
                self.decision = self.decision.counted_as(selection.uuids or (), request.visible)
            else:
                if self.lease is not None:
                    self.lease.release()  # the script has listed others since
                self._acquire(selection)
            assert self.decision is not None
            decision = self.decision
            ordinals = decision.ordinals if decision.is_ours else request.visible or ()
            self.assignment = Assignment(
                ordinals=ordinals if decision.is_ours else None,
                growth=True if self._policy.growth else None,
                caps=self._caps(decision, ordinals),
                logical_gpus=self._policy.virtual_gpus,
                moved=decision.moved,
                ceilings=self._ceilings(decision, selection),
                usable=usable_bytes(decision.visible, self._framework.DEFAULT_SHARE),
                totals={o: d.memory_total_bytes for o, d in enumerate(decision.visible) if d and d.memory_total_bytes},
            )
            self.state = State.ASSIGNED
        return self.assignment

    def _selection_request(self, request: DeviceRequest) -> SelectionRequest:
        # Not at the top, as all that only a claim needs: many processes import a framework and make no context.
        from autogpu.selection.eligible import wanted_count

        selection = SelectionRequest(
            policy=self._policy,
            visible_spec=self._visible.spec,
            inventory=self._readings.wait(CONTEXT_DEADLINE_S),
            uuids=self._cuda.visible_uuids(),
            gpu_count=request.gpu_count,
            own_uid=os.getuid(),
            own_pid=os.getpid(),
            chosen=request.visible,
            chosen_by_position=bool(request.visible) and self._visible.is_our_order,
            named_count=request.named,
            asked_count=request.count,
            count_is_set=self._resolved.settings["select.count"].overrides is not None,
            grant=self._visible.grant,
            in_use=self._cuda.ordinals_in_use(),
        )
        # A limit on some of the GPUs says nothing of what the others will take.
        wanted = min(wanted_count(selection), request.gpu_count)
        is_limited = bool(request.limits) and len(request.limits) >= wanted
        # What the script allows is taken once for each of the logical GPUs that its names make of one.
        each = max(1, -(-request.logical // max(wanted, 1)))
        limit = max(request.limits) * each if is_limited else None
        demand = script_demand(limit, min(request.fraction * each, 1.0))
        return replace(selection, script_demand=demand)

    def listing(self) -> Sequence[GpuListing] | None:
        """What the framework would list, without a context and without a claim."""
        if self._policy.count == 0:
            return ()
        inventory = self._readings.wait(CONTEXT_DEADLINE_S)
        uuids, attributes = self._cuda.visible_uuids(), self._cuda.attributes()
        if uuids is None or attributes is None:
            return None
        known = by_uuid(inventory.devices if inventory else ())
        devices = [known.get(uuid) for uuid in uuids]
        usable = usable_bytes(devices, self._framework.DEFAULT_SHARE)
        return [
            GpuListing(of_cuda, usable.get(ordinal, 0), (device.memory_total_bytes if device else None) or 0)
            for ordinal, (of_cuda, device) in enumerate(zip(attributes, devices))
        ]

    def _acquire(self, request: SelectionRequest) -> None:
        from autogpu.acquire import acquire, script_name

        self._demand = demand_of(request)
        environ, script = self._visible.environ_without_ours(), script_name(getattr(sys, "argv", []))
        waiting = WaitingReport(self._print if request.grant.is_first else lambda line: None)
        acquired = acquire(request, environ, script, self._readings.take, waiting)
        self.decision, self.lease, self._reserved = acquired.decision, acquired.lease, acquired.reserved
        if self.lease:
            self._environ[LEASE] = self.lease.marker(self._environ)
        if acquired.problem:
            self._say([messages.lease_problem(acquired.problem, is_unclaimed=acquired.is_unclaimed)])

    def _caps(self, decision: Decision, ordinals: Sequence[int]) -> Mapping[int, int]:
        if self._policy.limit is not None and self._policy.limit_includes == "process" and ordinals:
            with self._cuda.primary_contexts(ordinals):
                measured = self._measure(self._cuda.visible_uuids() or ())
            self._context_reserves = {o: context_reserve_bytes(measured.get(o)) for o in ordinals}
        return caps(self._policy, decision, self._context_reserves, default_share=self._framework.DEFAULT_SHARE)

    @staticmethod
    def _ceilings(decision: Decision, selection: SelectionRequest) -> Mapping[int, int]:
        """What a limit of the script's own may not exceed."""
        if not selection.script_demand:
            return {}
        # Ranks that share a GPU are of one job, and so is what their script says.
        return decision.ceilings if selection.grant.rank is None else decision.granted

    def _measure(self, uuids: Sequence[str]) -> Mapping[int, int]:
        return own_memory_bytes(self._readings.take(), uuids, os.getpid())

    def on_usage(self, usage: Usage) -> None:
        """Say which GPUs the framework takes, and why; the first time only."""
        if self._is_reported:
            return
        self._is_reported = True
        inventory = self._readings.wait(CONTEXT_DEADLINE_S)
        # Where a cgroup denies every GPU there is nothing to hide.
        is_denied = self._visible.grant.is_none and inventory is not None and not inventory.failure
        if self.decision is None and (self._visible.hidden_pool or is_denied):
            self._decide_without_gpus(self._visible.hidden_pool)
        if self.lease and not usage.ordinals:
            self.lease.release()
        self._say(messages.outcome(self.decision, usage, self._resolved, inventory, self._framework.NAME))
        ignored = self._visible.ignored_value
        if ignored is not None and self._policy.level != "quiet":
            self._say([messages.visible_devices_ignored(ignored, self._framework.NAME)])

    def _decide_without_gpus(self, pool: Sequence[str]) -> None:
        """The policy allows none of the pool's GPUs: what it makes of that, and why, is said as for a busy one."""
        from autogpu.acquire import raise_if_refused
        from autogpu.selection.decide import decide

        request = self._selection_request(DeviceRequest(len(pool)))
        self.decision = decide(replace(request, uuids=pool))
        raise_if_refused(self.decision)

    def on_context(self) -> None:
        """Let the lease name the GPUs that the driver says the process has, with what a context really costs."""
        uuids, in_use = self._cuda.visible_uuids(), self._cuda.ordinals_in_use()
        if not uuids or in_use == self._contexts:
            return
        is_first, self._contexts = not self._contexts, in_use
        self.state = State.IN_USE
        if self.lease is None and self.decision and self.decision.verdict is Verdict.CANNOT_CHOOSE:
            self._claim_unchosen([uuids[ordinal] for ordinal in in_use])
        if self.lease is not None:
            mine = self._reserved | {uuids[ordinal] for ordinal in in_use}
            claims = {uuid: self.lease.claims.get(uuid, 0) for uuid in mine}
            if set(claims) != set(self.lease.claims):
                self.lease.update(claims)
        if is_first and self.decision and self.assignment:
            self._account_for_context(uuids, self.decision, self.assignment)

    def _claim_unchosen(self, uuids: Sequence[str]) -> None:
        """Let the others see what the framework took by itself, where less was known than CUDA knows."""
        from autogpu import lease
        from autogpu.acquire import script_name

        folder = lease.find_folder(self._environ)
        claims = dict.fromkeys(uuids, _ALL_BYTES)
        self.lease = lease.acquire_lease(folder, lambda *_: claims, script=script_name(getattr(sys, "argv", [])))

    def _account_for_context(self, uuids: Sequence[str], decision: Decision, assignment: Assignment) -> None:
        """Correct the claim by what the context takes, and say it where that was asked or breaks a promise.

        At this moment only: once the script allocates, its own memory and the context's can't be told apart.
        """
        is_estimated = self.lease is not None and self._demand.context_bytes > 0
        is_asked = self._policy.level == "explain"
        if not (is_estimated or is_asked or self._context_reserves):
            return
        measured = self._measure(uuids)
        if self.lease is not None and is_estimated:
            # Never more than was claimed: that much was found free, and use beyond it shows in the readings.
            spared = {uuids[ordinal]: max(0, CONTEXT_BYTES - size) for ordinal, size in measured.items()}
            if any(spared.values()):
                claims = self.lease.claims.items()
                self.lease.update({uuid: max(0, size - spared.get(uuid, 0)) for uuid, size in claims})
        if is_asked or self._context_reserves:
            name, reserves = self._framework.NAME, self._context_reserves
            self._say(messages.context_memory(decision, assignment, measured, reserves, name, is_asked=is_asked))

    def on_replicas(self, strategy: str, replicas: int) -> None:
        """Report how to get more replicas, where the policy is why there are so few."""
        if self.decision and self.decision.verdict is Verdict.TAKE and self._policy.level != "quiet":
            self._say(messages.few_replicas(strategy, replicas, self.decision))

    def on_unsupported(self, why: str) -> None:
        """Report that the policy is not applied, and why; the framework continues with its defaults."""
        self.state = State.NOT_APPLIED
        self._say([messages.not_applied(why, self._framework.NAME)])

    def _say(self, lines: Iterable[str]) -> None:
        if self._visible.grant.is_first:
            for line in lines:
                self._print(line)


class _Readings:
    """The newest reading of the GPUs, and the one that is under way.

    Attributes:
        newest: ``None`` until one came.
    """

    def __init__(self, reader: DeviceReader, environ: Mapping[str, str], first: Reading) -> None:
        self.newest: Inventory | None = None
        self._reader = reader
        self._environ = environ
        self._pending: Reading | None = first

    @property
    def is_pending(self) -> bool:
        return self._pending is not None

    def begin(self) -> None:
        """Start one more."""
        self._pending = self._reader.start_in_process(self._environ, self.newest)

    def prepare(self) -> None:
        """Import beside the framework's import what a reading in this process needs."""
        if self.newest is not None:
            self._reader.prepare(self.newest)

    def wait(self, deadline_s: float) -> Inventory | None:
        """The newest reading, after the one under way has come or its deadline has passed."""
        if self._pending:
            inventory = self._pending.result(deadline_s)
            if inventory is not None:
                self.newest, self._pending = inventory, None
        return self.newest

    def wait_or_replace(self, deadline_s: float) -> Inventory | None:
        """As :meth:`wait`; one that has not come, or is a parent's, has another one take its place."""
        if self.wait(deadline_s) is None:
            self.close()
            self._pending = self._reader.start(self._environ)
            self.wait(_SECOND_CHANCE_S)
        return self.newest

    def take(self) -> Inventory | None:
        """One more reading, at once."""
        return self._reader.start_in_process(self._environ, self.newest).result(CONTEXT_DEADLINE_S)

    def close(self) -> None:
        """No reading is needed any more."""
        if self._pending:
            self._pending.close()
