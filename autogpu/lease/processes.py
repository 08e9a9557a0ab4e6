"""The processes of each job, as ``/proc`` shows them.

A job's processes are the holder of its lease, the descendants of the holder, and all others that keep the lease open.
"""

from __future__ import annotations

import os
from collections import defaultdict
from functools import lru_cache
from pathlib import Path
from typing import Callable, Iterable, Mapping, Sequence

from autogpu import process, users
from autogpu.errors import ignoring, raise_if_from_script
from autogpu.frozen import Value
from autogpu.lease.model import Holder

# Holders that the driver does not list are looked up, so that their pids can be shown, but no more than this many.
_MOST_UNLISTED = 16


class Processes(Value):
    """The processes of the jobs of this host, by their pids in this pid namespace.

    Attributes:
        of_lease: Pids, keyed by the lease's name, with the holder first. If the holder has ended, a complete search
            puts the oldest process that keeps the lease open first.
    """

    of_lease: Mapping[str, tuple[int, ...]]

    def of(self, holder: Holder) -> tuple[int, ...]:
        """Return the pids of one holder's job, apart from processes that have leases of their own."""
        return self.of_lease.get(holder.name, ())


class ProcessTable:
    """The processes that the driver lists in one reading, with their ancestors.

    Each process is looked up in ``/proc`` once. A caller that is going to take the mutex calls :meth:`of` before that.
    """

    def __init__(self, listed: Iterable[int]) -> None:
        self._listed = sorted(listed)
        self._above: dict[int, Sequence[tuple[int, int]]] = {}
        self._last: tuple[tuple[Holder, ...], Processes] | None = None

    def of(self, holders: Sequence[Holder]) -> Processes:
        """Return the processes of all leases except this process's own. The last result is cached."""
        others = tuple(holder for holder in holders if not holder.is_mine)
        if self._last is None or self._last[0] != others:
            self._last = others, processes_of(others, self._listed, self._ancestors)
        return self._last[1]

    def _ancestors(self, pid: int) -> Sequence[tuple[int, int]]:
        if pid not in self._above:
            self._above[pid] = tuple(process.with_ancestors(pid))
        return self._above[pid]


def _ancestors(pid: int) -> Sequence[tuple[int, int]]:
    return tuple(process.with_ancestors(pid))


def processes_of(
    holders: Iterable[Holder],
    listed: Iterable[int],
    ancestors: Callable[[int], Sequence[tuple[int, int]]] = _ancestors,
    *,
    is_complete: bool = False,
) -> Processes:
    """Find the job of each process that the driver lists.

    Args:
        listed: Pids that the driver lists, without this process.
        ancestors: Returns (pid, start time) of a process and of its ancestors, nearest first.
        is_complete: True to look up every holder and, if one has ended, the oldest process that keeps its lease open.
    """
    namespace = process.pid_namespace()
    here = {each.name: each for each in holders if each.pid_namespace == namespace}
    if not here:
        return Processes({})
    found = _listed_pids(here, listed, ancestors)
    unlisted = [name for name, pids in found.items() if not pids]
    firsts = _first_pids(
        [here[name] for name in (here if is_complete else unlisted[:_MOST_UNLISTED])], is_complete=is_complete
    )
    for name, first in firsts.items():
        found[name].insert(0, first)
    return Processes({name: tuple(dict.fromkeys(pids)) for name, pids in found.items()})


def _first_pids(holders: Sequence[Holder], *, is_complete: bool) -> Mapping[str, int]:
    """Return the holders' pids. With ``is_complete``, an ended one has the pid of a process that keeps its lease."""
    firsts = {holder.name: holder.pid_here for holder in holders}
    keepers = _oldest_keepers() if is_complete and None in firsts.values() else {}
    pids = {name: first or keepers.get(name) for name, first in firsts.items()}
    return {name: pid for name, pid in pids.items() if pid}


def _listed_pids(
    here: Mapping[str, Holder], listed: Iterable[int], ancestors: Callable[[int], Sequence[tuple[int, int]]]
) -> dict[str, list[int]]:
    """Return the listed pids, keyed by the name of their job's lease. The pid of the holder precedes each of them."""
    by_pid: dict[int | None, list[Holder]] = defaultdict(list)
    for each in here.values():
        by_pid[each.pid].append(each)
    found: dict[str, list[int]] = {name: [] for name in here}
    for pid in sorted(listed):
        owner = _owner(ancestors(pid), here, by_pid)
        if owner is not None:
            found[owner.name] += filter(None, (owner.pid_here, pid))
    return found


def _owner(
    above: Sequence[tuple[int, int]], here: Mapping[str, Holder], by_pid: Mapping[int | None, Sequence[Holder]]
) -> Holder | None:
    """Return the nearest holder in ``above``, which is a process with its ancestors.

    If none of them is a holder, return the first holder whose lease file one of them keeps open.
    """
    for pid, start in above:
        named = (each for each in by_pid.get(pid, ()) if each.start_time == start)
        # Check the user: a lease may contain any pid, such as that of root's sshd, an ancestor of most processes.
        fitting = [each for each in named if each.uid in (0, users.owner(pid))]
        if fitting:
            # Prefer the lease of the process's own user, because another lease may contain the same pid.
            uid = users.owner(pid)
            return min(fitting, key=lambda holder: holder.uid != uid)
    kept = (here[name] for process in above for name in _kept_leases(*process) if name in here)
    return next(kept, None)


def is_held_above(holder: Holder, above: Iterable[tuple[int, int]]) -> bool:
    """True if one of the processes ``above``, as (pid, start time), is the holder or a fork that keeps its lease open.

    Also true if this can't be checked because the holder is in another pid namespace, or ``/proc`` hides all processes.
    """
    above = list(above)
    if not above or holder.pid_namespace != process.pid_namespace():
        return True
    return (holder.pid, holder.start_time) in above or any(holder.name in _kept_leases(*each) for each in above)


def _oldest_keepers() -> Mapping[str, int]:
    """Return the pid of the oldest process that keeps each lease open, keyed by the lease's name.

    All leases share one pass through ``/proc``, because any user can make thousands of leases.
    """
    found: dict[str, int] = {}
    for start, pid in sorted((start, pid) for pid, _, start in process.running()):
        for name in _kept_leases(pid, start):
            found.setdefault(name, pid)
    return found


@lru_cache(maxsize=4096)
def _kept_leases(pid: int, start: int) -> tuple[str, ...]:
    """Return the names of the leases that a process keeps open; ``()`` for another user's process.

    The result is cached: a process inherits leases only when it starts.
    """
    folder = Path(f"/proc/{pid}")
    names = []
    try:
        own = f"job.{folder.stat().st_uid}."
        descriptors = os.listdir(folder / "fd")  # noqa: PTH208
    except OSError as error:  # the process has ended, or belongs to another user
        raise_if_from_script(error)
        return ()
    for descriptor in descriptors:
        with ignoring(OSError):  # the process has closed the file meanwhile
            name = os.readlink(folder / "fd" / descriptor).rpartition("/")[2]
            # A process that only reads the lease has no lock on it.
            if name.startswith(own) and b"OFDLCK" in (folder / "fdinfo" / descriptor).read_bytes():
                names.append(name)
    return tuple(names)
