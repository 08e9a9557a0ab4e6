"""The values of a selection: what is asked, what is known of each GPU, and what comes out."""

from __future__ import annotations

import enum
import sys
from types import MappingProxyType
from typing import Iterable, Mapping, Sequence

from autogpu.devices.model import Device, Inventory, by_uuid
from autogpu.frozen import Value, replace
from autogpu.policy.model import Policy
from autogpu.selection.grants import NO_ENGINE, Grant

# A job that has run for so long has most of the memory that it will take, and what is free then may be taken: in
# replayed days (benchmarks/lab_day.py) no job is killed by a later one after one minute, and two are no better.
SETTLED_S = 60.0

# Of a GPU's memory, the part that has to be free; more makes jobs wait for memory that most of them don't need.
LEAST_FREE_PART = 0.25


class Tier(enum.IntEnum):
    """How good a GPU's situation is, best first. No amount of memory lifts a GPU into a better tier."""

    FREE = 0
    IDLE_LEASE = 1
    BUSY = 2
    AWAITED = 3


class Cause(enum.Enum):
    """The kind of reason against a GPU."""

    EXCLUDED_BY_POLICY = "the policy excludes it"
    TOO_SMALL = "frameworks do not take it beside the larger GPUs"
    UNUSABLE = "it can serve no job"
    UNSUITABLE = "it can't serve this job, with or without other jobs on it"
    IN_USE = "other jobs are on it now"


class Verdict(enum.Enum):
    """The outcome for the process."""

    TAKE = "take the GPUs named"
    CPU = "continue without a GPU"
    WAIT = "wait for one"
    REFUSE = "stop"
    NOT_OUR_CHOICE = "the script has chosen"
    CANNOT_CHOOSE = "too little is known to choose"


class Cap(int):
    """The most bytes that a framework may allocate, with the reason; a number in every other way.

    Attributes:
        cause: ``share`` with other jobs, ``ranks`` of the same job on one GPU, ``limit`` of the policy, ``split`` into
            logical GPUs, ``script``, ``default`` and the framework's name, or ``grant`` and the engine's.
    """

    cause: str

    def __new__(cls, size: int, cause: str) -> Cap:
        cap = super().__new__(cls, size)
        cap.cause = cause
        return cap


class Claim(Value):
    """The claim of one job on one GPU, by its live leases.

    Attributes:
        bytes: 0 for a best-effort job, and on a GPU that the job uses without a claim.
        pids: Empty for a job in another container.
        age_s: Since the first of its processes claimed there; those that come later are known by what there is of it.
        newest_s: Since the last of them claimed a GPU, after which alone it can be idle.
        cap_bytes: The most that one of them may allocate; 0 where nothing caps it.
    """

    bytes: int
    pids: tuple[int, ...]
    uid: int
    script: str
    age_s: float
    newest_s: float
    cap_bytes: int = 0

    @property
    def is_settled(self) -> bool:
        return self.age_s >= SETTLED_S

    @property
    def held_bytes(self) -> int:
        """Others leave this to it: until a job that joined has run for a minute, all that it was told it may take."""
        return self.bytes if self.bytes or self.is_settled else self.cap_bytes

    def is_stated_of(self, device: Device) -> bool:
        """It has said what it needs there: who has not claims all of the GPU, or nothing where it is a guest."""
        return 0 < self.bytes < (device.memory_total_bytes or 0)

    def is_shown_on(self, device: Device) -> bool:
        """The driver shows its use: it has run for a minute, and has said what it needs or is listed."""
        listed = device.compute_processes
        # In a container, and under WSL2, the driver may hide processes.
        is_hidden = listed is None or not self.pids or device.unlisted_bytes > 0
        is_listed = is_hidden or any(process.pid in self.pids for process in listed or ())
        return self.is_settled and (is_listed or self.is_stated_of(device))


class MemoryDemand(Value):
    """How much of a GPU a job claims, in bytes or in percent of its memory; with neither, all of it.

    Attributes:
        context_bytes: On top of either, for what the CUDA context takes beside a limit that does not cover it.
        is_limit: The job continues with less, so that a smaller GPU is suitable as well.
        or_best_effort: Where it does not fit the job is a best-effort one: the number is the script's or an engine's.
        may_join: On a GPU that can be joined it may have all that is free, also where a job that states no size claims
            it.
    """

    bytes: int | None = None
    percent: float | None = None
    context_bytes: int = 0
    is_limit: bool = False
    or_best_effort: bool = False
    may_join: bool = False

    @property
    def is_whole(self) -> bool:
        """Nothing is known about the job, so no other job may count on the rest."""
        return self.bytes is None and self.percent is None

    def on(self, device: Device) -> int:
        """In bytes, of a limit never more than the GPU has; 1 where its memory is unknown and all of it is meant."""
        total = device.memory_total_bytes
        if self.bytes is not None:
            wanted = self.bytes + self.context_bytes
        elif self.percent is not None and total is not None:
            wanted = int(total * self.percent / 100) + self.context_bytes
        else:
            wanted = total or 1
        if self.is_whole or total is None:
            return wanted
        # A claim of all of it would be that of a job that has not said what it needs.
        return total - 1 if wanted == total or (self.is_limit and wanted > total) else wanted


class VisibleSpec(Value):
    """The value of ``CUDA_VISIBLE_DEVICES``, inherited from a shell, scheduler or engine, or hard-coded in the script.

    Attributes:
        value: ``None`` where it is not set.
        is_scripts: The script has set it itself.
        overridden: The script's own value that ``select.script = "override"`` disregards, else ``None``.
    """

    value: str | None = None
    is_scripts: bool = False
    overridden: str | None = None

    def admits(self, key: str, policy: Policy) -> bool:
        """The policy's ``select.devices`` or ``select.exclude`` counts beside this list."""
        return self.value is None or key in policy.locked


class SelectionRequest(Value):
    """Everything that a decision rests on, but for the leases, which are read under the host's mutex.

    Attributes:
        inventory: Fresh readings.
        uuids: The process's GPUs by CUDA ordinal, as the loaded driver names them; ``None`` if it does not.
        gpu_count: How many GPUs the framework sees.
        own_pid: ``None`` for a process that has not started.
        chosen: Ordinals of the certain GPUs that the script itself made visible; ``None`` if it named none.
        numbers: GPU numbers that the script named instead, in its order: the first stands for the best GPU that the
            process can have, and each further number for a further GPU.
        keeps_places: True if others count by the same numbers, so that a number stands for the GPU at that place as
            long as it is free.
        named_count: On how many different GPUs the script's device names would be.
        asked_count: How many GPUs it asks for by number.
        count_is_set: The policy's ``select.count`` is a user's word, and not the default.
        script_demand: What the script itself lets its framework take of each GPU.
        promised: By UUID, what the ranks of this job have claimed together; ``None`` where each goes by itself.
        in_use: Ordinals on which another library of this process has a context already.
        processes: How many processes it asks for: the ranks of a job, which divide these GPUs.
        waited_s: How long the process has waited for GPUs.
    """

    policy: Policy
    visible_spec: VisibleSpec
    inventory: Inventory
    uuids: Sequence[str] | None
    gpu_count: int
    own_uid: int
    own_pid: int | None = None
    chosen: Sequence[int] | None = None
    numbers: tuple[int, ...] = ()
    keeps_places: bool = False
    named_count: int = 0
    asked_count: int = 0
    count_is_set: bool = False
    script_demand: MemoryDemand | None = None
    grant: Grant = NO_ENGINE
    promised: Mapping[str, int] | None = None
    in_use: Sequence[int] = ()
    processes: int = 1
    waited_s: float = 0.0

    @property
    def joins_at_once(self) -> bool:
        """It shares what there is: it is not to wait, or its GPUs were named and no others would do."""
        is_told = self.names_cards or len(self.numbers) == self.gpu_count > 1
        return self.policy.busy == "share" and (is_told or not self.policy.wait_s)

    @property
    def has_waited(self) -> bool:
        """It shares what there is on a GPU to which nobody has come in the last minute."""
        return self.policy.busy == "share" and self.waited_s >= self.policy.wait_s

    @property
    def names_cards(self) -> bool:
        """The script or an engine lists certain ones, or a list has no more than the process takes."""
        if self.grant.engine or self.visible_spec.is_scripts:
            return True
        if self.visible_spec.value is None:
            return False
        asked = self.gpu_count if self.policy.count == "all" else self.policy.count
        return self.gpu_count <= max(asked, len(self.numbers), self.named_count, self.asked_count)

    @property
    def least_count(self) -> int:
        """How many GPUs it takes also beside others: a device name more can mean a logical GPU on one of those."""
        count = self.policy.count
        return len(self.numbers) or (sys.maxsize if count == "all" else count)

    @property
    def wanted_count(self) -> int:
        """How many GPUs it asks for: the script's word, where it has one, else the policy's."""
        is_set = self.numbers or self.count_is_set
        return self.least_count if is_set else max(self.least_count, self.named_count, self.asked_count)

    @property
    def takes_one(self) -> bool:
        """It asks for one GPU, or one for each of the processes for which it asks."""
        return self.wanted_count // self.processes <= 1

    @property
    def named(self) -> Sequence[int] | None:
        """The numbers that the script named, whatever they mean; ``None`` if it named none."""
        return self.numbers or self.chosen

    @property
    def uuids_in_use(self) -> frozenset[str]:
        return frozenset((self.uuids or ())[ordinal] for ordinal in self.in_use)

    @property
    def named_uuids(self) -> tuple[str, ...]:
        """Of the GPUs that the script named; where it named none, of all that the process sees."""
        named = self.named
        return tuple(uuid for ordinal, uuid in enumerate(self.uuids or ()) if named is None or ordinal in named)


class Candidate(Value):
    """A GPU that may be taken, and the readings that put it where it stands; ``None`` where the driver tells none.

    Attributes:
        spare_bytes: What is neither used nor claimed now.
        free_bytes: What is not used now, and not left to another job for what it has stated, or for its first minute.
        left_bytes: What would be left after the claim; for a job that claims all or nothing, what is free.
        is_best_effort: The job would be placed beside others and claims nothing.
    """

    device: Device
    tier: Tier
    why: str
    claims: tuple[Claim, ...] = ()
    claim_bytes: int = 0
    spare_bytes: int | None = None
    free_bytes: int | None = None
    left_bytes: int | None = None
    is_best_effort: bool = False

    @property
    def is_settled(self) -> bool:
        """Every job there has run for a minute, or has said what it needs."""
        return all(claim.is_settled or claim.is_stated_of(self.device) for claim in self.claims)

    @property
    def is_joinable(self) -> bool:
        """A job that does not say what it needs may join those that are there."""
        # Where the free memory is unknown, the minute alone decides.
        least = LEAST_FREE_PART * (self.device.memory_total_bytes or 0)
        is_enough = self.free_bytes is None or self.free_bytes >= least
        return self.tier is Tier.BUSY and is_enough and all(claim.is_shown_on(self.device) for claim in self.claims)

    def usable_bytes(self, *, may_join: bool) -> int | None:
        """Who may join others can have what they do not use, and anybody else what they have not claimed either."""
        return self.free_bytes if may_join and self.is_joinable else self.spare_bytes


class Rejection(Value):
    """A GPU that may not be taken, with the reason in words."""

    device: Device
    why: str
    cause: Cause


class Ranking(Value):
    """Every GPU once: among ``candidates``, in the order to try them, or in ``rejected``."""

    candidates: tuple[Candidate, ...] = ()
    rejected: tuple[Rejection, ...] = ()

    @property
    def suitable(self) -> tuple[Device, ...]:
        """The GPUs that could serve the job if none were in use."""
        return self._and_rejected_as(Cause.IN_USE)

    @property
    def pool(self) -> tuple[Device, ...]:
        """All GPUs that a job of this process can have: another one than this may need less."""
        return self._and_rejected_as(Cause.IN_USE, Cause.UNSUITABLE)

    def _and_rejected_as(self, *causes: Cause) -> tuple[Device, ...]:
        rejected = [rejection.device for rejection in self.rejected if rejection.cause in causes]
        return (*(candidate.device for candidate in self.candidates), *rejected)


class Decision(Value):
    """Which GPUs a process takes, and why, or why autogpu does not choose, in words such as ``the idlest of 4``.

    Attributes:
        ordinals: Of CUDA, for ``Verdict.TAKE``; for a script that named numbers, in their order.
        claims: By UUID, the bytes that others leave to the process; 0 for a best-effort job.
        moved: Ordinals of the GPUs that the script's numbers stand for, keyed by number.
        caps: By UUID, the most that it may allocate on a GPU that it shares, or of which it was granted a part.
        visible: The process's GPUs by ordinal, as far as they could be read.
        attainable: How many GPUs the process would take at most if ``select.count`` asked for more.
        of_ranks: For a rank, the UUID of the first GPU of each of its job's ranks, in their order.
        waits_for: How many GPUs it waits for, for ``Verdict.WAIT``.
        why_capped: Why a framework's memory is capped on GPUs that are shared.
        remedy: How to have an idle GPU instead, where a busy one was named.
    """

    verdict: Verdict
    why: str
    ordinals: tuple[int, ...] = ()
    claims: Mapping[str, int] = MappingProxyType({})
    moved: Mapping[int, int] = MappingProxyType({})
    caps: Mapping[str, Cap] = MappingProxyType({})
    ranking: Ranking = Ranking()
    visible: tuple[Device | None, ...] = ()
    attainable: int = 0
    of_ranks: tuple[str, ...] = ()
    waits_for: int = 0
    why_capped: str = ""
    remedy: str = ""

    @property
    def is_ours(self) -> bool:
        """Autogpu has chosen, be it to take no GPU."""
        return self.verdict not in (Verdict.NOT_OUR_CHOICE, Verdict.CANNOT_CHOOSE)

    def counted_as(self, uuids: Sequence[str], chosen: Sequence[int] | None = None) -> Decision:
        """The same decision where the process counts its GPUs as ``uuids``, and its script may have chosen of them."""
        known = by_uuid([device for device in self.visible if device])
        taken = [uuids.index(device.uuid) for device in self.devices if device.uuid in uuids]
        ordinals, visible = taken if chosen is None else chosen, tuple(known.get(uuid) for uuid in uuids)
        return replace(self, ordinals=tuple(ordinals), moved={}, visible=visible)

    def has_named(self, numbers: Sequence[int]) -> bool:
        """True if the script has named these numbers before."""
        return bool(numbers) and self.moved.keys() >= set(numbers)

    @property
    def numbering(self) -> Mapping[int, int]:
        """Ordinals of the process's GPUs, keyed by the script's numbers for them; empty if these are the ordinals.

        The numbers that the script has not named stand for the other GPUs, in their order.
        """
        moved, count = self.moved, range(len(self.visible))
        if all(number == ordinal for number, ordinal in moved.items()):
            return {}
        numbers = [number for number in count if number not in moved]
        others = [ordinal for ordinal in count if ordinal not in moved.values()]
        return {**dict(zip(numbers, others)), **moved}

    @property
    def devices(self) -> tuple[Device, ...]:
        """The GPUs named by ``ordinals``, idlest first."""
        number = {candidate.device.uuid: number for number, candidate in enumerate(self.ranking.candidates)}
        return tuple(sorted(self.at(self.ordinals), key=lambda device: number.get(device.uuid, len(number))))

    def at(self, ordinals: Iterable[int]) -> list[Device]:
        """The GPUs at some of the process's ordinals, as far as they could be read."""
        return [device for device in map(dict(enumerate(self.visible)).get, ordinals) if device]


def left_alone(request: SelectionRequest, why: str) -> Decision:
    """For one framework: it takes what it would without us, and the next one is decided about all the same."""
    known = by_uuid(request.inventory.devices)
    return Decision(Verdict.NOT_OUR_CHOICE, why, visible=tuple(known.get(uuid) for uuid in request.uuids or ()))
