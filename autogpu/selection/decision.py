"""The outcome of a choice, as values without text. ``reporting/choice.py`` makes the messages from them."""

from __future__ import annotations

import enum
from types import MappingProxyType
from typing import Iterable, Mapping, Sequence

from autogpu.caps import Cap, CapCause
from autogpu.devices.model import Device, by_uuid
from autogpu.engines.model import LocalRank
from autogpu.frozen import Value, replace
from autogpu.selection.model import Candidate, Ranking, SelectionRequest


class Verdict(enum.Enum):
    """The outcome for the process."""

    TAKE = enum.auto()
    CPU = enum.auto()  # continue without a GPU
    WAIT = enum.auto()
    REFUSE = enum.auto()  # end the script with an error
    NOT_OUR_CHOICE = enum.auto()  # the script has chosen
    CANNOT_CHOOSE = enum.auto()  # too little is known to choose


class Reason(enum.Enum):
    """Why a process takes its GPUs, or takes none."""

    # A choice of GPUs
    ONLY_ONE = enum.auto()
    ALL = enum.auto()
    IDLEST = enum.auto()
    LEAST_BUSY = enum.auto()
    NUMBERED = enum.auto()  # the GPUs at the script's numbers are free, and child processes or CUDA use these numbers
    HAS_CONTEXT = enum.auto()  # another library of the process has a CUDA context there
    LOCAL_RANK = enum.auto()
    PARENT = enum.auto()  # the process shares the claim of its parent process
    COUNTED_BEFORE = enum.auto()  # CUDA had counted the GPUs before autogpu could choose

    # The process takes no GPU, or has to wait for one
    COUNT_IS_ZERO = enum.auto()
    NOT_GRANTED = enum.auto()
    NO_DEVICE = enum.auto()
    PER_USER_CAP = enum.auto()
    TOO_FEW_FREE = enum.auto()
    NONE_FREE = enum.auto()

    # Not a choice of autogpu
    CHOSEN_BY_SCRIPT = enum.auto()
    WORKERS_NUMBER = enum.auto()  # a worker process uses a GPU number that autogpu can't find out

    # Too little is known
    DRIVER_FAILURE = enum.auto()
    COUNTS_DIFFER = enum.auto()
    UNREADABLE = enum.auto()
    ONLY_CUDA_KNOWS = enum.auto()
    DISABLED = enum.auto()


_FIXED = (Reason.CHOSEN_BY_SCRIPT, Reason.COUNTED_BEFORE, Reason.WORKERS_NUMBER)


class Shortfall(enum.Enum):
    """Why a process has fewer GPUs than it wants."""

    ONE_INSTANCE = enum.auto()
    PER_USER_CAP = enum.auto()
    SELECT_COUNT = enum.auto()
    NO_MORE = enum.auto()
    BUSY = enum.auto()


class IdleWay(enum.Enum):
    """The change by which a process would get an idle GPU."""

    OVERRIDE_SCRIPT = enum.auto()  # disregard the script's CUDA_VISIBLE_DEVICES
    UNSET_LIST = enum.auto()  # unset CUDA_VISIBLE_DEVICES
    HOLD_FIRST = enum.auto()  # claim before another library of the process starts CUDA


class RankSlice(Value):
    """The part of its job's GPUs that a local rank uses.

    Attributes:
        ranks: How many ranks divide the GPUs.
        sharers: How many ranks use the same GPUs as this rank, itself included.
    """

    rank: LocalRank
    ranks: int
    sharers: int


class ParentProcess(Value):
    """The process whose claim a child process shares; ``pid`` is ``None`` if it is unknown."""

    script: str
    pid: int | None


class Decision(Value):
    """The GPUs that a process takes, and why; or the reason why autogpu does not choose.

    Attributes:
        request: The request that was decided; ``None`` if there was none.
        ordinals: CUDA ordinals of the process's GPUs. If the script uses GPU numbers, in the order of these numbers.
        claims: Bytes that other jobs leave to the process, keyed by GPU UUID; 0 for a best-effort job.
        moved: Ordinals of the GPUs that the script's numbers stand for, keyed by number.
        script_numbers: The script's numbers for its GPUs, if autogpu put the GPUs at these indices of
            ``CUDA_VISIBLE_DEVICES``.
        caps: Caps on the process's memory, keyed by GPU UUID, for GPUs that it shares and for granted parts of GPUs.
        visible: The process's GPUs in the order of their ordinals; ``None`` for a GPU that could not be read.
        attainable: How many GPUs the process would take at most if ``select.count`` asked for more. For
            ``Verdict.WAIT``, how many GPUs could serve it if no other job used them.
        of_ranks: For a rank, the UUIDs of the first GPU of each rank of its job, in the order of the ranks. For a child
            process, the UUIDs of the GPUs that it shares with its job.
        waits_for: How many GPUs the process waits for, for ``Verdict.WAIT``.
        free: How many GPUs the process could take now, for ``Reason.TOO_FEW_FREE``.
        is_at_cap: True if the user holds as many GPUs as ``limits.per_user`` allows.
        held: How many GPUs the user's other jobs hold.
        idle_instead: Free GPUs of the machine, if a GPU of this process is not free.
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
    def is_fixed(self) -> bool:
        """True if the script, CUDA or a worker process has fixed the GPU: the process takes it even if it is busy."""
        return self.reason in _FIXED

    @property
    def misses_gpu(self) -> bool:
        """True if no GPU can ever serve the process, and ``select.busy`` is not ``"cpu"``."""
        request = self.request
        is_impossible = self.reason is Reason.NONE_FREE and not self.ranking.suitable
        return is_impossible and request is not None and request.busy != "cpu"

    @property
    def idle_way(self) -> IdleWay | None:
        """The change by which the process would get an idle GPU; ``None`` if it has one or can't get another."""
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
        """True if the process is a best-effort job on one of its GPUs: it may allocate only free memory."""
        uuids = [device.uuid for device in self.devices]
        if any(self.caps[uuid].cause is CapCause.SHARED for uuid in uuids if uuid in self.caps):
            return True
        # There is no cap if the GPU's memory is unknown.
        return any(self.claims.get(uuid) == 0 for uuid in uuids if uuid not in self.caps)

    @property
    def taken(self) -> tuple[Candidate, ...]:
        uuids = {device.uuid for device in self.devices}
        return tuple(candidate for candidate in self.ranking.candidates if candidate.device.uuid in uuids)

    def counted_as(self, uuids: Sequence[str], chosen: Sequence[int] | None = None) -> Decision:
        """Return the decision for a process that counts the GPUs ``uuids``; ``chosen`` replaces the ordinals."""
        known = by_uuid([device for device in self.visible if device])
        taken = [uuids.index(device.uuid) for device in self.devices if device.uuid in uuids]
        ordinals = taken if chosen is None else chosen
        visible = tuple(known.get(uuid) for uuid in uuids)
        return replace(self, ordinals=tuple(ordinals), moved={}, visible=visible)

    def has_named(self, numbers: Sequence[int]) -> bool:
        return bool(numbers) and self.moved.keys() >= set(numbers)

    @property
    def numbering(self) -> Mapping[int, int]:
        """CUDA ordinals, keyed by the script's GPU numbers; empty if every number is its own ordinal.

        Numbers that the script has not named stand for the remaining GPUs, in order.
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
        """The GPUs at ``ordinals``, idlest first."""
        number = {candidate.device.uuid: number for number, candidate in enumerate(self.ranking.candidates)}
        return tuple(sorted(self.at(self.ordinals), key=lambda device: number.get(device.uuid, len(number))))

    def at(self, ordinals: Iterable[int]) -> list[Device]:
        return [device for device in map(dict(enumerate(self.visible)).get, ordinals) if device]


def left_alone(request: SelectionRequest, reason: Reason) -> Decision:
    """Return the decision that lets a framework take the GPUs that it would take without autogpu."""
    known = by_uuid(request.inventory.devices)
    visible = tuple(known.get(uuid) for uuid in request.uuids or ())
    return Decision(Verdict.NOT_OUR_CHOICE, reason, request, visible=visible)
