"""The lines for a job that ran out of a GPU's memory: why, who else is there, and what avoids it here. Pure."""

from __future__ import annotations

from typing import Iterable, Sequence

from autogpu.frozen import frozen
from autogpu.reporting.text import GIB, listed, printable, size
from autogpu.selection.memory import CONTEXT_BYTES
from autogpu.selection.model import Cap
from autogpu.variables import PREFIX

# In one line with their names; `autogpu status` shows each.
_MOST = 3

# By the cause of a cap, the reason in words, and what avoids it where that is always the same. {whose} is an engine, a
# framework, or where a limit was set.
_CAPS = {
    "share": ("because it shares the GPU", ""),
    "ranks": ("because ranks of its job share the GPU", "to have more: fewer ranks on each GPU"),
    "grant": ("the part that {whose} granted", "to have more: ask {whose} for a larger part of a GPU"),
    "limit": ("by memory.limit ({whose})", "to have more: AUTOGPU_LIMIT={larger}"),
    "split": ("in each of its logical GPUs", "to have it in one piece: AUTOGPU_VIRTUAL_GPUS=1"),
    "script": ("by the script's own limit", "to have more: raise the limit in the script"),
    "default": ("the part that {whose} takes by itself", "to have more: AUTOGPU_LIMIT=95%"),
}
_OR = "; or "
_TOO_LARGE = "its model is larger than the GPU"
_IN_ONE_PIECE = "its memory may be in pieces; to have it in one: AUTOGPU_GROWTH=false"
_OF_ONE_JOB = "the processes of one job share its GPU: use it in fewer of them, or give memory back"


@frozen
class Shortage:
    """A GPU and a process at the moment at which memory ran out; numbers are 0 where they are unknown.

    Attributes:
        held_bytes: By the driver.
        used_bytes: By the framework.
        asked_bytes: What the framework could not allocate.
        cap: The most that it might allocate; ``None`` where nothing limited it.
        others: Who else is there, in words, with what they use; ``None`` where that is unknown.
        own_part: The most that a framework takes by itself, if it keeps memory, with gaps that may be too small.
        elsewhere: Of each other GPU that the process could have, its label, and what is neither used nor claimed there.
        waits: It waits for a free GPU already, or would not wait.
        claimed_bytes: By what it said that it needs.
        is_child: It has what its job has, whatever else is free.
        remedy: How to have an idle GPU, where the script named a busy one.
    """

    gpu: str
    total_bytes: int | None = None
    held_bytes: int = 0
    used_bytes: int = 0
    asked_bytes: int = 0
    cap: Cap | None = None
    others: Sequence[tuple[str, int]] | None = ()
    own_part: Cap | None = None
    elsewhere: Sequence[tuple[str, int]] = ()
    waits: bool = False
    claimed_bytes: int = 0
    is_child: bool = False
    remedy: str = ""
    locked: frozenset[str] = frozenset()

    @property
    def is_alone(self) -> bool:
        """Nobody else is on the GPU."""
        return self.others is not None and not self.others

    @property
    def needed_bytes(self) -> int:
        """It used and asked for so much, with its CUDA context; 0 where that is unknown."""
        had = self.used_bytes + CONTEXT_BYTES if self.used_bytes else self.held_bytes
        return had + self.asked_bytes if had else 0

    @property
    def is_too_large(self) -> bool:
        """It needs more than the GPU has."""
        return self.needed_bytes > (self.total_bytes or self.needed_bytes)


def advice(shortage: Shortage) -> list[str]:
    """At most three lines."""
    gpu = f"GPU {shortage.gpu}" + (f" ({size(shortage.total_bytes)})" if shortage.total_bytes else "")
    cap, own, used = shortage.cap, shortage.own_part, shortage.used_bytes
    if cap is None and shortage.is_alone:
        if own is None or (used and shortage.is_too_large):
            return [f"out of memory on {gpu}: this process had all of it and no limit: {_TOO_LARGE}"]
        cap = own if used and used + shortage.asked_bytes > own else None
    reason, remedy = _of_cap(cap, shortage)
    named = [f"{who}, {size(used)}" if used else who for who, used in shortage.others or ()]
    more = [f"{len(named) - _MOST} more"] if len(named) > _MOST else []
    there = ["also there: " + "; ".join(named[:_MOST] + more)] if named else []
    last = _open_to_all(remedy or _remedy(shortage), shortage.locked)
    return [f"out of memory on {gpu}: {reason}{_had(cap, shortage)}", *there, last]


def _open_to_all(remedy: str, locked: Iterable[str]) -> str:
    """The ways that set no locked key, or whom to ask where each does."""
    ways = remedy.split(_OR)
    for key in sorted(locked):
        left = [way for way in ways if f"{PREFIX}{key.rpartition('.')[2].upper()}=" not in way]
        if not left:
            return f"{key} is locked on this host: ask who administers it"
        ways = left
    return _OR.join(ways)


def _of_cap(cap: Cap | None, shortage: Shortage) -> tuple[str, str]:
    """The reason in words, and what avoids it where that is known by the cause."""
    if cap is None:
        return "nothing limits this process there", _OF_ONE_JOB if shortage.is_child and shortage.others else ""
    cause, _, whose = cap.cause.partition(" ")
    # Never one that is in force.
    gib = max(-(-shortage.needed_bytes // GIB), cap // GIB + 1)
    larger = f"{gib}GiB" if gib * GIB <= (shortage.total_bytes or 0) else "100%"
    reason, remedy = (printable(each.format(whose=whose, larger=larger)) for each in _CAPS.get(cause, _CAPS["share"]))
    return f"this process may take {size(cap)} there, {reason}", "" if shortage.is_too_large else remedy


def _had(cap: Cap | None, shortage: Shortage) -> str:
    held, asked = shortage.held_bytes, shortage.asked_bytes
    had = [f"it had {size(held)}{' with its CUDA context' if held > (cap or held) else ''}"] if held else []
    had += [f"it asked for {size(asked)} more"] if asked else []
    return f"; {listed(had)}" if had else ""


def _remedy(shortage: Shortage) -> str:
    needed, (label, spare) = shortage.needed_bytes, max(shortage.elsewhere, key=lambda each: each[1], default=("", 0))
    # No word for one that is claimed already.
    gib = -(-needed // GIB) if needed > shortage.claimed_bytes else 0
    is_elsewhere = spare >= gib * GIB > 0
    if shortage.is_too_large and not is_elsewhere:
        return _TOO_LARGE
    if shortage.remedy:
        return shortage.remedy
    if shortage.is_alone:
        return _IN_ONE_PIECE if shortage.cap is None else "no other job is on it any more: start it again"
    if is_elsewhere:
        return f"GPU {label} has {size(spare)} free now: AUTOGPU_NEED={gib}GiB gets it"
    # One that no cap was put on had joined nobody: the others came later.
    ways = ["to get a GPU of its own: AUTOGPU_BUSY=wait"] if shortage.cap is not None and not shortage.waits else []
    ways += [f"to say what it needs at least: AUTOGPU_NEED={gib}GiB"] if gib else []
    return _OR.join(ways) or "`autogpu status` shows who is there"
