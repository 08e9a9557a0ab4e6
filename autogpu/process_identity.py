"""What tells one process from another that once had, or elsewhere has, the same pid."""

from __future__ import annotations

import os
from pathlib import Path

# Of the host itself: PROC_PID_INIT_INO in the kernel's source.
INITIAL_NAMESPACE = "pid:[4026531836]"


def pid_namespace() -> str | None:
    """The name of this process's pid namespace, ``None`` where the system has none."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def start_time(pid: int | None = None) -> int | None:
    """When a process (``None``: this one) started, in clock ticks since boot; ``None`` if that is hidden.

    A number, not a time: only good for telling whether a pid still is the process that it was. Source:
    ``/proc/<pid>/stat``, field 22.
    """
    found = parent_and_start(pid)
    return None if found is None else found[1]


def parent_and_start(pid: int | None = None) -> tuple[int, int] | None:
    """The parent's pid and the start of a process (``None``: this one), as in :func:`start_time`; ``None`` likewise."""
    try:
        # "self", not one's own pid: in a pid namespace that kept the /proc of its parent that is another
        # process.
        # Not by Path, whose descriptor an interrupt can lose up to Python 3.9.
        with open(f"/proc/{'self' if pid is None else pid}/stat", "rb") as file:  # noqa: PTH123
            text = file.read()
        # The second field is the program's name in parentheses and may itself hold spaces and parentheses.
        fields = text.rpartition(b")")[2].split()
        return int(fields[1]), int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def pid_here(pid: int | None, namespace: str | None, started: int | None, uid: int) -> int | None:
    """``pid`` if it is a live process of ``uid`` in this pid namespace that started then, else ``None``."""
    if pid is None or namespace is None or started is None or namespace != pid_namespace():
        return None
    # The kernel shows a process that may not be dumped as root's.
    return pid if start_time(pid) == started and owner(pid) in (uid, 0) else None


def owner(pid: int) -> int | None:
    """The user of a process, as far as the kernel shows it; ``None`` where there is none."""
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None
