"""The GPUs of one process, whichever frameworks it imports.

The steps to it are in :mod:`autogpu.allocator`, which the hooks of each framework call.
"""

from __future__ import annotations

import enum
import os
from typing import Callable, ContextManager, Iterable, Mapping, MutableMapping

from autogpu.devices import cuda as loaded_cuda
from autogpu.devices import probe
from autogpu.devices.model import Inventory
from autogpu.errors import AutoGpuError
from autogpu.frozen import replace
from autogpu.history import ThisRun
from autogpu.policy.model import Policy, Resolved
from autogpu.process import renewed_in_children
from autogpu.reporting import messages, stderr
from autogpu.selection.grants import Grant
from autogpu.selection.model import Decision, SelectionRequest
from autogpu.selection.ranks import told_of_siblings
from autogpu.selection.visible_devices import restore
from autogpu.variables import LEASE
from autogpu.visibility import VisibleDevices

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.acquire import Taken
    from autogpu.devices.model import CudaDriver, DeviceReader, Reading
    from autogpu.lease import Lease


# Counted from the reading's start. An import takes about as long, so a driver that hangs delays nothing here.
IMPORT_DEADLINE_S = 5.0

# When the context is made a reading is worth waiting for: without persistence mode NVML's start takes seconds.
CONTEXT_DEADLINE_S = 10.0

# For one more try: the machine may have been busy with the import, or this process is a fork of the one that read.
_SECOND_CHANCE_S = 3.0


class Moment(enum.IntEnum):
    """When a process claims its GPUs."""

    IMPORT = 1
    CUDA_START = 2
    CONTEXT = 3


def claim_moment(*, hides_others: bool, has_candidates: bool, wants_order: bool) -> Moment:
    """When a process claims its GPUs: at the last moment at which its list of GPUs can still be written.

    Args:
        hides_others: What it has not claimed is to be hidden from every library.
        has_candidates: MIG instances are among its GPUs, of which CUDA does not show all.
        wants_order: One of its frameworks takes the GPUs that CUDA counts first.
    """
    if hides_others or (has_candidates and not wants_order):
        return Moment.IMPORT  # any library may start CUDA from now on
    return Moment.CUDA_START if wants_order else Moment.CONTEXT


class Allocation:
    """The GPUs of one process, and what all its frameworks need for its choice.

    Attributes:
        guard: Around every step of ours.
        resolved: The policy.
        environ: The environment that the driver, the framework and child processes read.
        cuda: The CUDA driver that the frameworks load.
        readings: Of NVML.
        visible: ``CUDA_VISIBLE_DEVICES``.
        this_run: Of the script, beside its last ones.
        taken: ``None`` until something is decided, and after it was given back.
        wants_order: One of the frameworks takes the GPUs that CUDA counts first.
        frameworks: Names of those that were imported.
        assigned_to: Names of those that were told their GPUs.
        reported: Whether it was said that the process takes GPUs (``True``), or none (``False``).
        told: What the variables told of the ranks of a job, when it was last asked.
        lock: Two frameworks may be used in two threads.
        say_in_each_rank: Prints a line that each rank of a job has to say for itself.
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
        self.guard = guard
        self.resolved = resolved
        self.environ = environ
        self.cuda = cuda
        self.readings = Readings(reader, environ, first_reading)
        self.visible = VisibleDevices(resolved.policy, environ, started_with, cuda, grant)
        self.this_run = ThisRun(resolved.policy, environ, grant)
        self.taken: Taken | None = None
        self.wants_order = False
        self.frameworks: list[str] = []
        self.assigned_to: set[str] = set()
        self.reported: set[bool] = set()
        self.told = told_of_siblings(environ)
        # AUTOGPU_LEASE, by which children know the claim that they share: as it was told to this process, and by which
        # process of ours it was written since, and what.
        self._parents_marker: str | None = None
        self._written_marker: tuple[int, str] | None = None
        self.say_in_each_rank: Callable[[str], None] = lambda line: say(resolved.as_typed(line))
        self.lock = renewed_in_children(self)

    @property
    def policy(self) -> Policy:
        """The policy of this process."""
        return self.resolved.policy

    @property
    def grant(self) -> Grant:
        """The grant of an engine so far."""
        return self.visible.grant

    @property
    def decision(self) -> Decision | None:
        """The last decision; ``None`` until a framework is about to take GPUs."""
        return self.taken.decision if self.taken else None

    @property
    def lease(self) -> Lease | None:
        """The lease of the process; ``None`` where nothing is claimed."""
        return self.taken.lease if self.taken else None

    @property
    def moment(self) -> Moment:
        """When the process claims, as far as is known."""
        visible = self.visible
        return claim_moment(
            hides_others=visible.hides_others,
            has_candidates=bool(visible.candidates) and not visible.lists_chosen,
            wants_order=self.wants_order,
        )

    @property
    def counted_uuids(self) -> tuple[str, ...] | None:
        """Of the GPUs that CUDA counts, as NVML writes them; ``None`` before it does."""
        return self.visible.counted(self.readings.newest)

    @property
    def uuids(self) -> tuple[str, ...] | None:
        """Of the process's GPUs, as CUDA counts them, or will count them by the list that we wrote."""
        counted = self.counted_uuids
        return (self.visible.pool or None) if counted is None else counted

    def take(self, request: SelectionRequest) -> Decision:
        """Decide and claim, instead of what was claimed before: the script may have listed other GPUs since."""
        # Not at the top, as all that only a claim needs: many processes import a framework and make no context.
        from autogpu.acquire import acquire, running_script

        self.release()
        waiting = messages.WaitingReport(self.say_in_each_rank if request.grant.is_first else lambda line: None)
        environ, script = self.visible.environ_without_ours(), self.grant.task or running_script()
        try:
            self.taken = acquire(request, environ, script, self.readings.take, waiting, run=self.this_run.key)
        except KeyboardInterrupt as error:
            waiting.interrupted(error)
            raise
        except AutoGpuError as error:
            error.remedy = self.resolved.as_typed(error.remedy)
            raise
        self.tell_children()
        if self.taken.problem:
            self.say([messages.lease_problem(self.taken.problem, is_unclaimed=self.taken.is_unclaimed)])
        return self.taken.decision

    def decided(self, decision: Decision, *, is_listed: bool | None = None) -> Decision:
        """Hold ``decision`` for what was decided; the claim stays."""
        from autogpu.acquire import Taken

        taken = self.taken or Taken(decision)
        self.taken = replace(taken, decision=decision, is_listed=taken.is_listed if is_listed is None else is_listed)
        return decision

    def release(self) -> None:
        """Give the claim back; the decision is void."""
        if self.lease is not None:
            self.lease.release()
        self.taken = None
        # Later claims belong to its parent's job again. Not in a forked child, nor over what another one has written.
        if self._written_marker == (os.getpid(), self.environ.get(LEASE)):
            restore(self.environ, self._parents_marker, LEASE)

    def tell_children(self) -> None:
        """Let child processes share the claim; again whenever ``CUDA_VISIBLE_DEVICES`` has changed."""
        if self.lease is not None:
            if self._written_marker != (os.getpid(), self.environ.get(LEASE)):
                self._parents_marker = self.environ.get(LEASE)
            self.environ[LEASE] = marker = self.lease.marker(self.environ)
            self._written_marker = (os.getpid(), marker)

    def say(self, lines: Iterable[str]) -> None:
        """Print what only one of the ranks of a job needs to say."""
        if self.grant.is_first:
            for line in lines:
                self.say_in_each_rank(line)


class Readings:
    """The ``newest`` reading of the GPUs, ``None`` until one came, and the one that is under way."""

    def __init__(self, reader: DeviceReader, environ: Mapping[str, str], first: Reading) -> None:
        """Begin with ``first``, which is under way."""
        self.newest: Inventory | None = None
        self._reader = reader
        self._environ = environ
        self._pending: Reading | None = first
        self._stuck: Reading | None = None

    @property
    def is_pending(self) -> bool:
        """One is under way."""
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
        """Take one more reading, at once; as long as the driver has not answered the last one, wait for that."""
        if self._stuck is None or not self._stuck.is_running:
            self._stuck = self._reader.start_in_process(self._environ, self.newest)
        return self._stuck.result(CONTEXT_DEADLINE_S)

    def take_outside(self, deadline_s: float) -> Inventory | None:
        """Take one more in a process of its own: an interpreter that is ending may start no thread."""
        reading = self._reader.start(self._environ)
        try:
            return reading.result(deadline_s)
        finally:
            reading.close()

    def close(self) -> None:
        """End the reading that is under way: none is needed any more."""
        if self._pending:
            self._pending.close()
            self._pending = None
