"""The outcome of a choice, as facts. ``reporting/choice.py`` makes sentences of them."""

from __future__ import annotations

import enum
from types import MappingProxyType
from typing import Iterable, Mapping, Sequence

from autogpu.caps import Cap, CapCause
from autogpu.devices.model import Device, by_uuid
from autogpu.frozen import Value, replace
from autogpu.selection.grants import LocalRank
from autogpu.selection.model import Candidate, Ranking, SelectionRequest


class Verdict(enum.Enum):
    """The outcome for the process."""

    TAKE = enum.auto()  # take these GPUs
    CPU = enum.auto()  # continue without a GPU
    WAIT = enum.auto()  # wait for one
    REFUSE = enum.auto()  # stop
    NOT_OUR_CHOICE = enum.auto()  # the script has chosen
    CANNOT_CHOOSE = enum.auto()  # too little is known to choose


class Reason(enum.Enum):
    """Why a process takes its GPUs, or takes none."""

    # A choice of GPUs
    ONLY_ONE = enum.auto()
    ALL = enum.auto()
    IDLEST = enum.auto()
    LEAST_BUSY = enum.auto()
    NUMBERED = enum.auto()  # the GPUs at the script's numbers are free, and others count by the same numbers
    HAS_CONTEXT = enum.auto()  # another library of the process has a CUDA context there
    LOCAL_RANK = enum.auto()
    PARENT = enum.auto()  # the process shares what its parent process claimed
    COUNTED_BEFORE = enum.auto()  # CUDA had counted the GPUs before autogpu could choose

    # No GPU, now or at all
    COUNT_IS_ZERO = enum.auto()
    NOT_GRANTED = enum.auto()
    NO_DEVICE = enum.auto()
    PER_USER_CAP = enum.auto()
    TOO_FEW_FREE = enum.auto()
    NONE_FREE = enum.auto()

    # A choice of somebody else
    CHOSEN_BY_SCRIPT = enum.auto()
    WORKERS_NUMBER = enum.auto()  # a worker process uses a number that is not known

    # Too little is known
    DRIVER_FAILURE = enum.auto()
    COUNTS_DIFFER = enum.auto()
    UNREADABLE = enum.auto()
    ONLY_CUDA_KNOWS = enum.auto()
    DISABLED = enum.auto()


class Shortfall(enum.Enum):
    """Why a process has fewer GPUs than it wants."""

    ONE_INSTANCE = enum.auto()
    PER_USER_CAP = enum.auto()
    SELECT_COUNT = enum.auto()
    NO_MORE = enum.auto()
    BUSY = enum.auto()


class IdleWay(enum.Enum):
    """How a process whose GPU was named would get an idle one instead."""

    OVERRIDE_SCRIPT = enum.auto()  # disregard the script's CUDA_VISIBLE_DEVICES
    UNSET_LIST = enum.auto()  # unset CUDA_VISIBLE_DEVICES
    HOLD_FIRST = enum.auto()  # claim before another library of the process starts CUDA


class RankSlice(Value):
    """The part that a local rank has of its job's GPUs.

    Attributes:
        ranks: How many ranks divide the GPUs.
        sharers: How many of them have this one's GPUs.
    """

    rank: LocalRank
    ranks: int
    sharers: int


class ParentProcess(Value):
    """The process whose claim a child process shares; ``pid`` is ``None`` if it is unknown."""

    script: str
    pid: int | None


class Decision(Value):
    """Which GPUs a process takes, and why, or why autogpu does not choose.

    Attributes:
        request: The request that was decided; ``None`` if there was none.
        ordinals: Of CUDA, for ``Verdict.TAKE``; for a script that named numbers, in their order.
        claims: Bytes that others leave to the process, keyed by GPU UUID; 0 for a best-effort job.
        moved: Ordinals of the GPUs that the script's numbers stand for, keyed by number.
        script_numbers: The script's numbers for its GPUs, if CUDA counts the GPUs so because of them.
        caps: The most that it may allocate on a GPU that it shares, or of which it was granted a part, keyed by UUID.
        visible: The process's GPUs by ordinal; ``None`` for one that could not be read.
        attainable: How many GPUs the process would take at most if ``select.count`` asked for more; for
            ``Verdict.WAIT``, how many could serve it if no other job used them.
        of_ranks: For a rank, the UUID of the first GPU of each of its job's ranks, in their order.
        waits_for: How many GPUs it waits for, for ``Verdict.WAIT``.
        free: How many GPUs it could take now, for ``Reason.TOO_FEW_FREE``.
        is_at_cap: True if the user holds as many GPUs as ``limits.per_user`` allows.
        held: How many GPUs the user's other jobs hold.
        idle_instead: GPUs of the machine that are free while one of this process's is not.
    """

    verdict: Verdict
    reason: Reason
    request: SelectionRequest | None = None
    ordinals: tuple[int, ...] = ()
    claims: Mapping[str, int] = MappingProxyType({})
    moved: Mapping[int, int] = MappingProxyType({})
    script_numbers: tuple[int, ...] = ()
    caps: Mapping[str, Cap] = MappingProxyType({})
    ranking: Ranking = Ranking()
    visible: tuple[Device | None, ...] = ()
    attainable: int = 0
    of_ranks: tuple[str, ...] = ()
    waits_for: int = 0
    free: int = 0
    shortfall: Shortfall | None = None
    is_at_cap: bool = False
    held: int = 0
    idle_instead: tuple[Device, ...] = ()
    slice: RankSlice | None = None
    parent: ParentProcess | None = None

    @property
    def is_ours(self) -> bool:
        """True if autogpu has chosen, even if it chose to take no GPU."""
        return self.verdict not in (Verdict.NOT_OUR_CHOICE, Verdict.CANNOT_CHOOSE)

    @property
    def misses_gpu(self) -> bool:
        """True if no GPU can ever serve the process, although its policy asks for one."""
        request = self.request
        is_impossible = self.reason is Reason.NONE_FREE and not self.ranking.suitable
        return is_impossible and request is not None and request.busy != "cpu"

    @property
    def idle_way(self) -> IdleWay | None:
        """How the process would get an idle GPU; ``None`` if it has one, or can have no other."""
        request = self.request
        if request is None or self.verdict is not Verdict.TAKE or not self.idle_instead:
            return None
        if request.visible_spec.is_scripts:
            return IdleWay.OVERRIDE_SCRIPT
        if request.visible_spec.value is not None and not request.grant.engine:
            return IdleWay.UNSET_LIST
        return IdleWay.HOLD_FIRST if self.reason is Reason.COUNTED_BEFORE else None

    @property
    def is_capped_by_others(self) -> bool:
        """True if the process is a best-effort job on one of its GPUs: it may allocate what other jobs leave free."""
        uuids = [device.uuid for device in self.devices]
        if any(self.caps[uuid].cause is CapCause.SHARED for uuid in uuids if uuid in self.caps):
            return True
        # Without a cap, because the GPU's memory is unknown.
        return any(self.claims.get(uuid) == 0 for uuid in uuids if uuid not in self.caps)

    @property
    def taken(self) -> tuple[Candidate, ...]:
        """The candidates that were taken, best first."""
        uuids = {device.uuid for device in self.devices}
        return tuple(candidate for candidate in self.ranking.candidates if candidate.device.uuid in uuids)

    def counted_as(self, uuids: Sequence[str], chosen: Sequence[int] | None = None) -> Decision:
        """The same decision where the process counts its GPUs as ``uuids``, and its script may have chosen of them."""
        known = by_uuid([device for device in self.visible if device])
        taken = [uuids.index(device.uuid) for device in self.devices if device.uuid in uuids]
        ordinals = taken if chosen is None else chosen
        visible = tuple(known.get(uuid) for uuid in uuids)
        return replace(self, ordinals=tuple(ordinals), moved={}, visible=visible)

    def has_named(self, numbers: Sequence[int]) -> bool:
        """True if the script has named these numbers before."""
        return bool(numbers) and self.moved.keys() >= set(numbers)

    @property
    def numbering(self) -> Mapping[int, int]:
        """Ordinals of the process's GPUs, keyed by the script's numbers for them; empty if these are the ordinals.

        The numbers that the script has not named stand for the other GPUs, in their order.
        """
        moved = self.moved
        count = range(len(self.visible))
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


def left_alone(request: SelectionRequest, reason: Reason) -> Decision:
    """Return the decision for a framework that takes what it would take without autogpu."""
    known = by_uuid(request.inventory.devices)
    visible = tuple(known.get(uuid) for uuid in request.uuids or ())
    return Decision(Verdict.NOT_OUR_CHOICE, reason, request, visible=visible)
