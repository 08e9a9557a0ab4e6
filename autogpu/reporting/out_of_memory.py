"""Sentences about a process that ran out of a GPU's memory."""

from __future__ import annotations

from typing import Iterable, Sequence

from autogpu.caps import Cap, CapCause
from autogpu.reporting.policy import unless_locked
from autogpu.selection.exhaustion import Exhaustion, Neighbour, Remedy
from autogpu.text import GIB, listed, printable, size, whole_gib
from autogpu.users import user_name

# In one line with their names; `autogpu status` shows each.
_MOST = 3

_UNLIMITED = "nothing limits this process there"
_TOO_LARGE = "its model is larger than the GPU"

# For each cause of a cap, why it is so, and what avoids it if the cause tells that. {whose} is the engine, the
# framework, or where memory.limit was set.
_CAPS = {
    CapCause.SHARED: ("because it shares the GPU", ""),
    CapCause.RANKS: ("because ranks of its job share the GPU", "to have more: fewer ranks on each GPU"),
    CapCause.GRANT: ("the part that {whose} granted", "to have more: ask {whose} for a larger part of a GPU"),
    CapCause.LIMIT: ("by memory.limit ({whose})", "to have more: AUTOGPU_LIMIT={larger}GiB"),
    CapCause.SPLIT: ("in its logical GPUs", "to have it in one piece: AUTOGPU_VIRTUAL_GPUS=1"),
    CapCause.SCRIPT: ("by the script's own limit", "to have more: raise the limit in the script"),
    CapCause.DEFAULT: (
        "the part that {whose} takes by itself",
        "to have more, and in one piece: AUTOGPU_LIMIT=95% AUTOGPU_GROWTH=false",
    ),
    CapCause.WHOLE: ("", "it has the GPU to itself: use a larger GPU, or less memory in the script"),
}


def out_of_memory(found: Exhaustion, *, limit_origin: str, idle_remedy: str, locked: Iterable[str]) -> list[str]:
    """Return at most three lines: what limited the process, who else is there, and what avoids it.

    Args:
        limit_origin: Where ``memory.limit`` was set.
        idle_remedy: How to have an idle GPU instead of a busy one that the script named.
        locked: Policy keys that the host locks: no remedy may name them.
    """
    device = found.device
    gpu = f"GPU {device.label}"
    if device.memory_total_bytes:
        gpu += f" ({size(device.memory_total_bytes)})"
    reason, by_cap = _cap_words(found.cap, found.needed_bytes, limit_origin)
    remedy = {
        Remedy.NONE: _TOO_LARGE,
        Remedy.BY_CAP: by_cap,
        Remedy.OTHER_GPU: idle_remedy,
        Remedy.STATUS: "`autogpu status` shows who is there, and which GPU has room",
        Remedy.OWN_GPU: "to get a GPU of its own: AUTOGPU_BUSY=wait",
        Remedy.NEED: _need(found),
    }[found.remedy]
    return [
        f"out of memory on {gpu}: {reason}{_had(found.held_bytes, found.asked_bytes)}",
        *_also_there(found.others),
        unless_locked(remedy, locked),
    ]


def _need(found: Exhaustion) -> str:
    setting = f"AUTOGPU_NEED={whole_gib(found.needed_bytes)}GiB"
    if found.next_waits:
        return f"the next run waits until {size(found.needed_bytes)} are free; to reserve them as well: {setting}"
    return f"to say what it needs at least: {setting}"


def _cap_words(cap: Cap | None, needed_bytes: int, limit_origin: str) -> tuple[str, str]:
    """Return what limits the process, and what avoids it if the cause tells that."""
    if cap is None:
        return _UNLIMITED, ""
    # Never a limit that is in force already.
    larger = max(whole_gib(needed_bytes), cap.bytes // GIB + 1)
    names = {"whose": cap.whose or limit_origin, "larger": larger}
    reason, remedy = (printable(text.format(**names)) for text in _CAPS[cap.cause])
    return f"this process may take {size(cap.bytes)} there, {reason}" if reason else _UNLIMITED, remedy


def _had(held_bytes: int, asked_bytes: int) -> str:
    had = [f"it had {size(held_bytes)} with its CUDA context"] if held_bytes else []
    had += [f"it asked for {size(asked_bytes)} more"] if asked_bytes else []
    return f"; {listed(had)}" if had else ""


def _also_there(others: Sequence[Neighbour]) -> list[str]:
    if not others:
        return []
    names = [_neighbour(each) + (f", {size(each.used_bytes)}" if each.used_bytes else "") for each in others]
    more = [f"{len(names) - _MOST} more"] if len(names) > _MOST else []
    return ["also there: " + "; ".join(names[:_MOST] + more)]


def _neighbour(other: Neighbour) -> str:
    if other.script is not None:
        pid = "" if other.pid is None else f" (pid {other.pid})"
        return f"{user_name(other.uid or 0)}'s {printable(other.script, 80) or 'job'}{pid}"
    if other.pid is None:
        return "processes that the driver does not show"
    return f"pid {other.pid}" + ("" if other.uid is None else f" of {user_name(other.uid)}")
