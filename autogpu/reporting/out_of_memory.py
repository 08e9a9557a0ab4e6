"""Sentences about a process that ran out of a GPU's memory."""

from __future__ import annotations

from typing import Iterable, Sequence

from autogpu.caps import Cap, CapCause
from autogpu.reporting.policy import unless_locked
from autogpu.selection.exhaustion import Exhaustion, Neighbour, Remedy
from autogpu.text import GIB, printable, size, whole_gib
from autogpu.users import user_name

# At most this many neighbours are named in one line; `autogpu status` shows all.
_MOST = 3

_UNLIMITED = "no memory limit applies to this process"
_TOO_LARGE = "the script needs more memory than the GPU has: use a larger GPU, or less memory in the script"

# Reason and remedy for each cause of a cap; the remedy is "" if it depends on more than the cause. {whose} is the
# engine, the framework, or the place where memory.limit was set.
_CAPS = {
    CapCause.SHARED: ("by other jobs on the GPU", ""),
    CapCause.RANKS: ("by other ranks on the GPU", "for more memory: start fewer ranks on each GPU"),
    CapCause.GRANT: (", the part that {whose} granted", "for more memory: request a larger part of a GPU from {whose}"),
    CapCause.LIMIT: ("by memory.limit ({whose})", "for more memory: AUTOGPU_LIMIT={larger}GiB"),
    CapCause.SPLIT: (", divided among its logical GPUs", "to use the memory as one GPU: AUTOGPU_VIRTUAL_GPUS=1"),
    CapCause.SCRIPT: ("by the script's own limit", "for more memory: raise the limit in the script"),
    CapCause.DEFAULT: (
        ", the part that {whose} takes by default",
        "for more memory, allocated at once: AUTOGPU_LIMIT=95% AUTOGPU_GROWTH=false",
    ),
    CapCause.WHOLE: ("", "this process has the GPU to itself: use a larger GPU, or less memory in the script"),
}


def out_of_memory(found: Exhaustion, *, limit_origin: str, idle_remedy: str, locked: Iterable[str]) -> list[str]:
    """Return at most three lines: the limit of the process, the other processes on the GPU, and a remedy.

    Args:
        limit_origin: Where ``memory.limit`` was set.
        idle_remedy: The setting that gives the process a free GPU instead of a busy one that the script named.
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
        Remedy.STATUS: "`autogpu status` shows the jobs on each GPU, and which GPU has room",
        Remedy.OWN_GPU: "to wait for a GPU that no other job uses: AUTOGPU_BUSY=wait",
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
        return f"the next run waits until {size(found.needed_bytes)} is free; to reserve that much: {setting}"
    return f"to reserve enough memory next time: {setting}"


def _cap_words(cap: Cap | None, needed_bytes: int, limit_origin: str) -> tuple[str, str]:
    """Return the reason for the cap, and a remedy if the cause alone suggests one."""
    if cap is None:
        return _UNLIMITED, ""
    # Suggest a higher limit than the one in force.
    larger = max(whole_gib(needed_bytes), cap.bytes // GIB + 1)
    names = {"whose": cap.whose or limit_origin, "larger": larger}
    reason, remedy = (printable(text.format(**names)) for text in _CAPS[cap.cause])
    separator = "" if reason.startswith(",") else " "
    return f"limited to {size(cap.bytes)}{separator}{reason}" if reason else _UNLIMITED, remedy


def _had(held_bytes: int, asked_bytes: int) -> str:
    had = [f"had {size(held_bytes)}"] if held_bytes else []
    had += [f"requested {size(asked_bytes)} more"] if asked_bytes else []
    return f"; {', '.join(had)}" if had else ""


def _also_there(others: Sequence[Neighbour]) -> list[str]:
    if not others:
        return []
    names = [_neighbour(each) + (f", {size(each.used_bytes)}" if each.used_bytes else "") for each in others]
    more = [f"{len(names) - _MOST} more"] if len(names) > _MOST else []
    return ["also on this GPU: " + "; ".join(names[:_MOST] + more)]


def _neighbour(other: Neighbour) -> str:
    if other.script is not None:
        pid = "" if other.pid is None else f" (pid {other.pid})"
        return f"{user_name(other.uid or 0)}'s {printable(other.script, 80) or 'job'}{pid}"
    if other.pid is None:
        return "processes that the driver does not list"
    return f"pid {other.pid}" + ("" if other.uid is None else f" of {user_name(other.uid)}")
