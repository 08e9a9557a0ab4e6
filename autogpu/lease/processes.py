"""Which processes are of whose job, by ``/proc``: a holder's, those below it, and those that keep its lease alive."""

from __future__ import annotations

import os
from collections import defaultdict
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Iterable, Iterator, Mapping, Sequence

from autogpu import process
from autogpu.frozen import frozen
from autogpu.lease.model import Holder

# More than any process has above it; others wait for the mutex meanwhile.
_MOST_ABOVE = 64

# Holders that the driver does not list (yet), of whom a line can name the process nevertheless.
_MOST_UNLISTED = 16


@frozen
class Processes:
    """The processes of the jobs of this host, as this pid namespace counts them.

    Attributes:
        of_lease: By a lease's name; the holder first, or where it has ended the oldest that keeps the lease alive.
        unknown: The driver lists them, and they are no processes of this namespace: what it lists says nothing here.
    """

    of_lease: Mapping[str, tuple[int, ...]]
    unknown: frozenset[int] = frozenset()

    def of(self, holder: Holder) -> tuple[int, ...]:
        """Those of one holder's job, apart from those that have leases of their own."""
        return self.of_lease.get(holder.name, ())


def processes_of(holders: Iterable[Holder], listed: Iterable[int], *, is_complete: bool = False) -> Processes:
    """Find the job of each process that the driver lists.

    Args:
        listed: By the driver, without this process.
        is_complete: Find as well all holders that it does not list, or who keeps their leases, for showing.
    """
    namespace = process.pid_namespace()
    here = {each.name: each for each in holders if each.pid_namespace == namespace}
    by_pid: dict[int | None, list[Holder]] = defaultdict(list)
    for each in here.values():
        by_pid[each.pid].append(each)
    found: dict[str, list[int]] = {name: [] for name in here}
    unknown = set()
    for pid in sorted(listed):
        above = list(_with_ancestors(pid))
        owner = _owner(above, here, by_pid)
        if owner is not None:
            found[owner.name] += filter(None, (owner.pid_here, pid))
        elif not above:
            unknown.add(pid)
    unlisted = [name for name, pids in found.items() if not pids]
    for name in here if is_complete else unlisted[:_MOST_UNLISTED]:
        first = here[name].pid_here
        if first is None and is_complete:
            first = _oldest_keeper(name)
        found[name][:0] = filter(None, [first])
    return Processes({name: tuple(dict.fromkeys(pids)) for name, pids in found.items()}, frozenset(unknown))


def _owner(
    above: Sequence[tuple[int, int]], here: Mapping[str, Holder], by_pid: Mapping[int | None, Sequence[Holder]]
) -> Holder | None:
    """Find the nearest holder above the first of these processes, else whose lease one of them keeps alive."""
    for pid, start in above:
        named = (each for each in by_pid.get(pid, ()) if each.start_time == start)
        fitting = [each for each in named if _may_be_of(each.uid, pid, above[0][0])]
        if fitting:
            # Another user may have written the same pid into a lease of his.
            uid = process.owner(pid)
            return min(fitting, key=lambda holder: holder.uid != uid)
    kept = (here[name] for process in above for name in _kept_leases(*process) if name in here)
    return next(kept, None)


def _may_be_of(uid: int, holder: int, pid: int) -> bool:
    """The holder is its lease's word alone: else one that names root's sshd would have all that others compute."""
    return process.is_of(uid, holder) and (uid == 0 or process.is_of(uid, pid))


def _with_ancestors(pid: int) -> Iterator[tuple[int, int]]:
    """The process and those above it, nearest first, each with its start; nothing where it is none here."""
    for _ in range(_MOST_ABOVE):
        found = process.parent_and_start(pid)
        if found is None:
            return
        parent, start = found
        yield pid, start
        if parent <= 1:
            return
        pid = parent


def _oldest_keeper(name: str) -> int | None:
    keepers = [(start, pid) for pid, _, start in process.running() if name in _kept_leases(pid, start)]
    return min(keepers)[1] if keepers else None


@lru_cache(maxsize=1024)
def _kept_leases(pid: int, start: int) -> tuple[str, ...]:
    """The names of the leases that a process keeps for ever; ``()`` for another user's, whose files are hidden."""
    folder, names = Path(f"/proc/{pid}"), []
    try:
        own = f"job.{folder.stat().st_uid}."
        descriptors = os.listdir(folder / "fd")  # noqa: PTH208
    except OSError:  # it has ended
        return ()
    for descriptor in descriptors:
        with suppress(OSError):  # it has closed this one meanwhile
            name = os.readlink(folder / "fd" / descriptor).rpartition("/")[2]
            # One that only reads it has no lock there.
            if name.startswith(own) and b"OFDLCK" in (folder / "fdinfo" / descriptor).read_bytes():
                names.append(name)
    return tuple(names)
