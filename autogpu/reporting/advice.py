"""The lines for a job that ran out of a GPU's memory: why, who else is there, and what avoids it here. Pure."""

from __future__ import annotations

from autogpu.frozen import frozen
from autogpu.reporting.text import GIB, listed, printable, size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.selection.model import Cap

# In one line with their names; `autogpu status` shows each.
_MOST = 3

# By the cause of a cap, the reason in words, and what avoids it where that is always the same. {whose} is an engine, or
# where a limit was set, {needed} what the process needs.
_CAPS = {
    "share": ("because it shares the GPU", ""),
    "ranks": ("because ranks of its job share the GPU", "to have more: fewer ranks on each GPU"),
    "grant": ("the part that {whose} granted", "to have more: ask {whose} for a larger part of a GPU"),
    "limit": ("by memory.limit ({whose})", "to have more: AUTOGPU_LIMIT={needed}"),
    "split": ("in each of its logical GPUs", "to have it in one piece: AUTOGPU_VIRTUAL_GPUS=1"),
    "script": ("by the script's own limit", "to have more: raise the limit in the script"),
}
_OF_ITS_JOB = ("as every process of its job", "")


@frozen
class Shortage:
    """What is known of a GPU and a process at the moment at which memory ran out.

    Attributes:
        gpu: Its label.
        total_bytes: ``None`` where the driver does not tell.
        held_bytes: What the driver shows of the process; 0 where it does not.
        asked_bytes: What it could not allocate; 0 where the framework does not say.
        cap: The most that it might allocate; ``None`` where nothing limited it.
        others: Who else is there, in words, with what they use.
        is_certain: The driver has told who is there now.
        elsewhere: Of each other GPU that the process could have, its label, and what is neither used nor claimed there.
        waits: The policy lets it wait for a free GPU already.
        remedy: How to have an idle GPU, where the script named a busy one.
    """

    gpu: str
    total_bytes: int | None = None
    held_bytes: int = 0
    asked_bytes: int = 0
    cap: Cap | None = None
    others: tuple[tuple[str, int], ...] = ()
    is_certain: bool = True
    elsewhere: tuple[tuple[str, int], ...] = ()
    waits: bool = False
    remedy: str = ""

    @property
    def needed_gib(self) -> int:
        """What it needs at least, in whole GiB; 0 where that is unknown, or more than the GPU has."""
        held = self.held_bytes or self.cap or 0
        needed = -(-(held + self.asked_bytes) // GIB) if held else 0
        return needed if needed * GIB <= (self.total_bytes or needed * GIB) else 0


def advice(shortage: Shortage) -> list[str]:
    """At most three lines."""
    gpu = f"GPU {shortage.gpu}" + (f" ({size(shortage.total_bytes)})" if shortage.total_bytes else "")
    if shortage.cap is None and shortage.is_certain and not shortage.others:
        return [f"out of memory on {gpu}: this process had all of it and no limit: its model is larger than the GPU"]
    why, remedy = "nothing limits this process there", ""
    if shortage.cap is not None:
        cause, _, whose = shortage.cap.cause.partition(" ")
        needed = f"{shortage.needed_gib}GiB" if shortage.needed_gib else "100%"
        reason, remedy = (each.format(whose=whose, needed=needed) for each in _CAPS.get(cause, _OF_ITS_JOB))
        why = f"this process may take {size(shortage.cap)} there, {printable(reason)}"
    had = [f"it had {size(shortage.held_bytes)}"] if shortage.held_bytes else []
    had += [f"it asked for {size(shortage.asked_bytes)} more"] if shortage.asked_bytes else []
    lines = [f"out of memory on {gpu}: {'; '.join([why, *([listed(had)] if had else [])])}"]
    if shortage.others:
        named = [f"{who}, {size(used)}" if used else who for who, used in shortage.others[:_MOST]]
        more = [f"{len(shortage.others) - _MOST} more"] if len(shortage.others) > _MOST else []
        lines.append("also there: " + "; ".join(named + more))
    return [*lines, printable(remedy) or _remedy(shortage)]


def _remedy(shortage: Shortage) -> str:
    needed = shortage.needed_gib
    if shortage.remedy:
        return shortage.remedy
    if shortage.is_certain and not shortage.others:
        return "no other job is on it any more: start it again"
    label, spare = max(shortage.elsewhere, key=lambda each: each[1], default=("", 0))
    if needed and spare >= needed * GIB:
        return f"GPU {label} has {size(spare)} free now: AUTOGPU_NEED={needed}GiB gets it"
    ways = [] if shortage.waits else ["to get a GPU of its own: AUTOGPU_BUSY=wait"]
    if needed:
        ways.append(f"to say what it needs at least: AUTOGPU_NEED={needed}GiB")
    return "; or ".join(ways) or "`autogpu status` shows who is there"
