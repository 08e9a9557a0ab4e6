"""The input of a decision: the request, and the state of each GPU."""

from __future__ import annotations

import enum
import sys
from types import MappingProxyType
from typing import Mapping, Sequence

from autogpu.caps import CONTEXT_BYTES
from autogpu.devices.model import Device, Inventory
from autogpu.engines.model import NO_ENGINE, Grant
from autogpu.frozen import Value, replace
from autogpu.policy.model import Policy

# After this time a job has allocated most of the memory that it will use, so other jobs may take the rest. In the
# simulated days of benchmarks/lab_day.py, no job that has run for a minute fails because a later job takes its memory.
# A limit of two minutes is no better.
SETTLED_S = 60.0

# Part of a GPU's memory that must be free before a job joins others. A larger part makes jobs wait for memory that most
# of them don't need.
LEAST_FREE_PART = 0.25


class Tier(enum.IntEnum):
    """The class of a GPU, best first. No amount of free memory lifts a GPU into a better class."""

    FREE = 0
    IDLE_LEASE = 1
    BUSY = 2
    AWAITED = 3


class Cause(enum.Enum):
    """The kind of reason against a GPU."""

    EXCLUDED_BY_POLICY = enum.auto()
    TOO_SMALL = enum.auto()  # frameworks ignore it beside larger GPUs
    UNUSABLE = enum.auto()  # it can serve no job
    UNSUITABLE = enum.auto()  # it can't serve this job, with or without other jobs on it
    IN_USE = enum.auto()  # other jobs are on it now


class Obstacle(enum.Enum):
    """The reason against a GPU. Each value is a unique number and the kind of reason."""

    NOT_AMONG_DEVICES = 1, Cause.EXCLUDED_BY_POLICY
    EXCLUDED = 2, Cause.EXCLUDED_BY_POLICY
    SMALL_CARD = 3, Cause.TOO_SMALL
    MIG_WITHOUT_INSTANCE = 4, Cause.UNUSABLE
    PROHIBITED = 5, Cause.UNUSABLE
    EXCLUSIVE = 6, Cause.IN_USE
    NEED_ABOVE_TOTAL = 7, Cause.UNSUITABLE
    NEED_ABOVE_FREE = 8, Cause.IN_USE


class Claim(Value):
    """The claim of one job on one GPU, by its live leases.

    Attributes:
        bytes: 0 for a best-effort job, and on a GPU that the job uses without a claim.
        pids: Empty for a job in another container.
        age_s: Seconds since the job's first process claimed this GPU. Later processes do not reset it, because by then
            the driver shows the first one's use.
        newest_s: Seconds since the job's last claim of any GPU. The time until its leases count as idle starts there.
        cap_bytes: The most that one of the job's processes may allocate; 0 if nothing caps it.
        engine_job: The job of an engine to which the GPU, or a part of it, was granted; ``""`` if there is none.
    """

    bytes: int
    pids: tuple[int, ...]
    uid: int
    script: str
    age_s: float
    newest_s: float
    cap_bytes: int = 0
    engine_job: str = ""

    @property
    def is_settled(self) -> bool:
        return self.age_s >= SETTLED_S

    @property
    def held_bytes(self) -> int:
        """Bytes that other jobs must leave free: the claim; for a best-effort job in its first minute, its cap."""
        return self.bytes if self.bytes or self.is_settled else self.cap_bytes

    def is_stated_of(self, device: Device) -> bool:
        """True if the job stated its need. Other jobs claim the whole GPU, or 0 as best-effort jobs."""
        return 0 < self.bytes < (device.memory_total_bytes or 0)

    def is_shown_on(self, device: Device) -> bool:
        """True if the driver shows the job's use: after a minute, if the job is listed or stated its need."""
        listed = device.compute_processes
        # In a container, and under WSL2, the driver may hide processes.
        is_hidden = listed is None or not self.pids or device.unlisted_bytes > 0
        is_listed = is_hidden or any(process.pid in self.pids for process in listed or ())
        return self.is_settled and (is_listed or self.is_stated_of(device))


class MemoryDemand(Value):
    """How much of a GPU a job claims, in bytes or in percent of its memory; the whole GPU if neither is set.

    Attributes:
        context_bytes: Bytes for the CUDA context, added to a limit that does not include it.
        is_limit: True if the job continues with less, so that a smaller GPU is suitable as well.
        or_best_effort: True to place the job as a best-effort job if the demand does not fit, instead of rejecting the
            GPU.
        may_join: True if the job may use memory that is claimed but unused on a GPU that can be joined.
    """

    bytes: int | None = None
    percent: float | None = None
    context_bytes: int = 0
    is_limit: bool = False
    or_best_effort: bool = False
    may_join: bool = False

    @property
    def is_whole(self) -> bool:
        return self.bytes is None and self.percent is None

    def on(self, device: Device) -> int:
        """Return the claim in bytes; a limit is lowered to the GPU's size. 1 stands for a GPU of unknown size."""
        total = device.memory_total_bytes
        if self.bytes is not None:
            wanted = self.bytes + self.context_bytes
        elif self.percent is not None and total is not None:
            wanted = int(total * self.percent / 100) + self.context_bytes
        else:
            wanted = total or 1
        if self.is_whole or total is None:
            return wanted
        # A claim of the GPU's exact size would count as one without a stated need.
        return total - 1 if wanted == total or (self.is_limit and wanted > total) else wanted


def memory_demand(policy: Policy) -> MemoryDemand:
    """Return a process's demand by the policy: its need, else the limit of all virtual GPUs, else the whole GPU."""
    if policy.need_bytes is not None:
        return MemoryDemand(bytes=policy.need_bytes)
    if policy.limit is None:
        return MemoryDemand()
    size = policy.limit.bytes
    percent = policy.limit.percent
    parts = policy.virtual_gpus
    return MemoryDemand(
        bytes=None if size is None else size * parts,
        percent=None if percent is None else percent * parts,
        context_bytes=0 if policy.limit_includes == "process" else CONTEXT_BYTES,
        is_limit=True,
    )


def demand_of_script(limits: Sequence[int], fraction: float, logical: int, wanted: int) -> MemoryDemand | None:
    """Return how much of each GPU the script lets its framework take; ``None`` if the script sets no limit.

    Args:
        limits: The script's limits in bytes, one for each GPU with a limit.
        fraction: The limit as a part of each GPU's memory, 0 to 1; 0 if unset.
        logical: How many logical GPUs its device names ask for, on ``wanted`` GPUs.
    """
    # The limit applies to each logical GPU, and the script's device names can make several of one GPU.
    each = max(1, -(-logical // max(wanted, 1)))
    # If only some of the GPUs have a limit, the process may use any amount on the others.
    is_limited = bool(limits) and len(limits) >= wanted
    if not is_limited and not fraction:
        return None
    return MemoryDemand(
        bytes=max(limits) * each if is_limited else None,
        percent=None if is_limited else 100 * min(fraction * each, 1.0),
        context_bytes=CONTEXT_BYTES,
        is_limit=True,
        or_best_effort=True,
    )


class VisibleSpec(Value):
    """The value of ``CUDA_VISIBLE_DEVICES``, inherited from a shell, scheduler or engine, or hard-coded in the script.

    Attributes:
        value: ``None`` if it is not set.
        is_scripts: True if the script has set it itself.
        overridden: The script's own value that ``select.script = "override"`` disregards, else ``None``.
    """

    value: str | None = None
    is_scripts: bool = False
    overridden: str | None = None

    def admits(self, key: str, policy: Policy) -> bool:
        """True if the policy's ``key``, such as ``select.devices``, applies in addition to this list."""
        return self.value is None or key in policy.locked


class WantedBy(enum.Enum):
    """Who determines how many GPUs a process wants."""

    DEFAULT = enum.auto()  # nobody: select.count has its default
    POLICY = enum.auto()  # a user, by select.count
    SCRIPT = enum.auto()  # the script, by GPU numbers, device names or a count


class Wanted(Value):
    """How many GPUs a process wants.

    Attributes:
        count: ``sys.maxsize`` for all GPUs that the process sees.
        minimum: The process takes this many even as a best-effort job, and further GPUs only if it can claim memory
            there.
        named: How many different GPUs the script's numbers or device names refer to; 0 if it has none.
    """

    count: int
    minimum: int
    by: WantedBy = WantedBy.DEFAULT
    named: int = 0


ONE_GPU = Wanted(1, 1, WantedBy.POLICY)


def wanted_gpus(
    count: int | str, *, is_set: bool, numbers: Sequence[int] = (), named: int = 0, asked: int = 0
) -> Wanted:
    """Return how many GPUs a process wants.

    The script's GPU numbers come first, then a user's ``select.count``, then the script's device names and its count.

    Args:
        is_set: True if a user has set ``select.count``.
        named: How many different GPUs the script's device names refer to.
        asked: How many GPUs the script requests; 0 if it does not request a number.
    """
    minimum = sys.maxsize if count == "all" else int(count)
    if numbers:
        return Wanted(len(numbers), len(numbers), WantedBy.SCRIPT, named=len(numbers))
    if is_set:
        return Wanted(minimum, minimum, WantedBy.POLICY, named)
    most = max(minimum, named, asked)
    return Wanted(most, minimum, WantedBy.SCRIPT if most > minimum else WantedBy.DEFAULT, named)


class LastRuns(Value):
    """How much memory the last runs of a script took on one GPU of a model, the CUDA context included.

    Attributes:
        bytes: The most that one of them used, or requested when it failed.
        has_failed: True if ``bytes`` was requested by a run that ran out of memory, and no run has succeeded since.
    """

    script: str
    bytes: int
    has_failed: bool = False


class SelectionRequest(Value):
    """Everything that a decision depends on, except the leases, which are read under the host's mutex.

    Attributes:
        uuids: UUIDs of the process's GPUs in the order of CUDA ordinals; ``None`` if they are unknown.
        gpu_count: How many GPUs the framework sees.
        own_pid: ``None`` for a process that has not started.
        busy: What to do if no GPU is free. A caller may replace the policy's ``select.busy`` by a value that it
            supports.
        wait_s: Seconds to wait before sharing a GPU whose jobs use most of the memory; 0 to share at once.
        per_user: How many GPUs the user may hold; 0 for no limit, as for GPUs that the process uses in any case.
        chosen: Ordinals of the GPUs that the script itself made visible; ``None`` if it did not choose.
        numbers: GPU numbers in the script for which autogpu chooses the GPUs, in the script's order. The first one
            stands for the best GPU that the process can have, each further number for a further GPU.
        keeps_places: True if number n keeps GPU n while that GPU is free, because child processes or CUDA count by the
            same numbers.
        script_demand: How much of each GPU the script lets its framework take; ``None`` if it sets no limit.
        promised: Bytes that the ranks of this job have claimed together, keyed by GPU UUID; ``None`` if each rank
            claims for itself.
        in_use: Ordinals of GPUs on which another library of this process has a CUDA context already.
        processes: How many processes divide the GPUs: the ranks of a job, or 1.
        last_runs: Memory use of the script's last runs, keyed by GPU model; empty if it is unknown.
    """

    policy: Policy
    visible_spec: VisibleSpec
    inventory: Inventory
    uuids: Sequence[str] | None
    gpu_count: int
    own_uid: int
    wanted: Wanted
    busy: str
    wait_s: float
    per_user: int
    own_pid: int | None = None
    chosen: Sequence[int] | None = None
    numbers: tuple[int, ...] = ()
    keeps_places: bool = False
    script_demand: MemoryDemand | None = None
    grant: Grant = NO_ENGINE
    promised: Mapping[str, int] | None = None
    in_use: Sequence[int] = ()
    processes: int = 1
    waited_s: float = 0.0
    last_runs: Mapping[str, LastRuns] = MappingProxyType({})

    @property
    def demand(self) -> MemoryDemand:
        """How much of each GPU the process asks for: by its script, else by the policy."""
        return self.script_demand or memory_demand(self.policy)

    def demand_among(self, sharers: int = 1) -> MemoryDemand:
        """Return the memory that the process claims: its stated need or limit, else an equal part among ``sharers``."""
        demand = self.demand
        if sharers == 1 or not demand.is_whole:
            or_best_effort = demand.or_best_effort or self.joins_at_once or self.has_waited
            return replace(demand, or_best_effort=or_best_effort, may_join=self.busy == "share")
        return MemoryDemand(percent=100 / sharers, is_limit=True, or_best_effort=True)  # the CUDA context included

    @property
    def heeds_last_runs(self) -> bool:
        """True if the process joins other jobs only on a GPU with enough free memory for its script's last runs."""
        return self.busy == "share" and not self.joins_at_once and self.demand.is_whole

    @property
    def joins_at_once(self) -> bool:
        """True if the process shares GPUs without a wait: ``wait_s`` is 0, or it can use no GPUs but the named ones."""
        # Only the job's own scripts fill a granted part of a GPU, so the next script can wait for them.
        is_named = self.names_cards and self.grant.fraction is None
        is_named |= len(self.numbers) == self.gpu_count > 1
        return self.busy == "share" and (is_named or not self.wait_s)

    @property
    def has_waited(self) -> bool:
        """True if the process has waited long enough to share a GPU on which every job has run for a minute."""
        return self.busy == "share" and self.waited_s >= self.wait_s

    @property
    def names_cards(self) -> bool:
        """True if the script or an engine lists certain GPUs, or any list has no more GPUs than the process takes."""
        if self.grant.engine or self.visible_spec.is_scripts:
            return True
        return self.visible_spec.value is not None and self.gpu_count <= max(self.wanted.count, self.wanted.named)

    @property
    def takes_one(self) -> bool:
        """True if the request is for one GPU, or for one GPU for each of its processes."""
        return self.wanted.count // self.processes <= 1

    @property
    def named(self) -> Sequence[int] | None:
        """The GPU numbers in the script, either ``numbers`` or ``chosen``; ``None`` if there are none."""
        return self.numbers or self.chosen

    @property
    def uuids_in_use(self) -> frozenset[str]:
        return frozenset((self.uuids or ())[ordinal] for ordinal in self.in_use)

    @property
    def named_uuids(self) -> tuple[str, ...]:
        """UUIDs of the GPUs that the script names; if it names none, of all GPUs that the process sees."""
        named = self.named
        return tuple(uuid for ordinal, uuid in enumerate(self.uuids or ()) if named is None or ordinal in named)


class Candidate(Value):
    """A GPU that may be taken, and the values that determine its rank. ``None`` stands for an unknown value.

    Attributes:
        spare_bytes: Memory that is neither used nor claimed.
        free_bytes: Memory that is neither used nor reserved by a stated need or a job's first minute.
        left_bytes: Memory that the claim would leave; ``free_bytes`` for a job that claims the whole GPU or nothing.
        is_best_effort: True if the job would be placed beside others and claim nothing.
        is_awaited: True if a job in the queue could use the GPU now.
        last_runs: Memory use of the script's last runs on this model; ``None`` if it is unknown or does not matter.
    """

    device: Device
    tier: Tier
    claims: tuple[Claim, ...] = ()
    claim_bytes: int = 0
    spare_bytes: int | None = None
    free_bytes: int | None = None
    left_bytes: int | None = None
    is_best_effort: bool = False
    is_awaited: bool = False
    last_runs: LastRuns | None = None

    @property
    def fits_last_runs(self) -> bool:
        return self.last_runs is None or self.free_bytes is None or self.free_bytes >= self.last_runs.bytes

    @property
    def is_settled(self) -> bool:
        return all(claim.is_settled or claim.is_stated_of(self.device) for claim in self.claims)

    @property
    def least_free_bytes(self) -> int:
        """The memory that must be free before a job without a stated need joins the jobs there."""
        quarter = int(LEAST_FREE_PART * (self.device.memory_total_bytes or 0))
        return max(quarter, self.last_runs.bytes) if self.last_runs else quarter

    @property
    def is_joinable(self) -> bool:
        """True if a job without a stated need may join the jobs there."""
        # If the free memory is unknown, it is enough that the driver shows the use of every job.
        is_enough = self.free_bytes is None or self.free_bytes >= self.least_free_bytes
        return self.tier is Tier.BUSY and is_enough and all(claim.is_shown_on(self.device) for claim in self.claims)

    def usable_bytes(self, *, may_join: bool) -> int | None:
        return self.free_bytes if may_join and self.is_joinable else self.spare_bytes


class Rejection(Value):
    """A GPU that may not be taken.

    Attributes:
        wanted_bytes: Bytes that the process would claim, if the GPU has too little memory.
        available_bytes: Bytes that it could claim at most, if the GPU has too little memory.
    """

    device: Device
    obstacle: Obstacle
    wanted_bytes: int = 0
    available_bytes: int = 0

    @property
    def cause(self) -> Cause:
        return self.obstacle.value[1]


class Ranking(Value):
    """All GPUs, each of them once: in ``candidates``, best first, or in ``rejected``."""

    candidates: tuple[Candidate, ...] = ()
    rejected: tuple[Rejection, ...] = ()

    @property
    def suitable(self) -> tuple[Device, ...]:
        """The GPUs that could serve the job if none were in use."""
        return self._and_rejected_as(Cause.IN_USE)

    @property
    def pool(self) -> tuple[Device, ...]:
        """The GPUs that could serve the job if none were in use, and if it needed less memory."""
        return self._and_rejected_as(Cause.IN_USE, Cause.UNSUITABLE)

    def _and_rejected_as(self, *causes: Cause) -> tuple[Device, ...]:
        rejected = [rejection.device for rejection in self.rejected if rejection.cause in causes]
        return (*(candidate.device for candidate in self.candidates), *rejected)
