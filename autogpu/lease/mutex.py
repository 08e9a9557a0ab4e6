"""The host's mutex: between choosing a GPU and claiming it no other process may choose."""

from __future__ import annotations

import errno
import os
import time
from contextlib import contextmanager
from typing import Iterator

from autogpu.lease import locks
from autogpu.lease.folder import MUTEX, Folder, make_mutex
from autogpu.lease.model import Uncoordinated

DEADLINE_S = 2.0

# A hundred jobs that start at once pass the mutex on for longer than the deadline, and nothing is wrong with that: the
# deadline is for one holder. Whoever changes holders in order to keep others out gains no more than this.
LONGEST_S = 10.0

_FIRST_PAUSE_S = 0.002
_LONGEST_PAUSE_S = 0.016

# A FIFO must not block us and a link must not lead us elsewhere; never O_CREAT, which fs.protected_regular
# forbids on another user's file in a sticky folder, even to root.
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


@contextmanager
def held(folder: Folder, deadline_s: float = DEADLINE_S) -> Iterator[int]:
    """Hold the mutex; gives the folder's descriptor.

    Threads of one process exclude each other like processes. What the body raises comes through unchanged.

    Raises:
        Uncoordinated: One process has kept it for ``deadline_s``; the message names who, where that can be seen.
    """
    begun_s = time.monotonic()
    with folder.opened() as descriptor:
        while True:
            mutex = _open(folder, descriptor)
            try:
                _take(folder, mutex, begun_s, deadline_s)
                is_current = _is_current(descriptor, mutex)
                if is_current:
                    yield descriptor
            finally:
                # Explicitly, not by closing alone: a child that another thread has forked meanwhile shares
                # the description, and the lock would stay until that child ends.
                try:
                    locks.unlock(mutex)
                finally:
                    locks.close(mutex)
            if is_current:
                return
            # Somebody removed it while we waited, and others may hold its successor by now.
            if time.monotonic() > begun_s + deadline_s:
                what = f"{folder.path / MUTEX} is replaced again and again"
                raise Uncoordinated(what, remedy=f"see who does it in {folder.path}")


def _open(folder: Folder, descriptor: int) -> int:
    try:
        try:
            mutex = os.open(MUTEX, _FLAGS, dir_fd=descriptor)
        except FileNotFoundError:
            make_mutex(descriptor)
            mutex = os.open(MUTEX, _FLAGS, dir_fd=descriptor)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _broken(folder, "is a symbolic link") from error
        raise folder.uncoordinated("has no mutex that could be taken", error) from error
    locks.close_in_children(mutex)
    if not locks.is_regular(os.fstat(mutex)):
        locks.close(mutex)
        raise _broken(folder, "is not a plain file")
    return mutex


def _take(folder: Folder, mutex: int, begun_s: float, deadline_s: float) -> None:
    pause = _FIRST_PAUSE_S
    holder: str | None = None
    kept_since_s, look_again_s = begun_s, begun_s + deadline_s / 4
    while True:
        try:
            if locks.try_exclusive(mutex):
                return
        except OSError as error:
            raise folder.uncoordinated("is on a file system that can't lock", error) from error
        now_s = time.monotonic()
        if now_s >= look_again_s:
            before, holder = holder, locks.holder(mutex)
            look_again_s = now_s + deadline_s / 4
            if before is not None and holder != before:
                kept_since_s = now_s
        left = min(kept_since_s + deadline_s, begun_s + max(LONGEST_S, deadline_s)) - now_s
        if left <= 0:
            who = locks.holder(mutex) or "a process that can't be seen from here"
            raise Uncoordinated(
                f"{folder.path / MUTEX} has been held for {deadline_s:g} s by {who}",
                remedy="if it is stuck, end that process; the others then coordinate again",
            )
        # Spread, or forty waiters would knock together. Not by ``random``: the script may have seeded it and
        # count on what comes next.
        time.sleep(min(left, pause * (0.5 + os.urandom(1)[0] / 512)))
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _is_current(descriptor: int, mutex: int) -> bool:
    try:
        named = os.stat(MUTEX, dir_fd=descriptor, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return locks.is_same_file(named, os.fstat(mutex))


def _broken(folder: Folder, what: str) -> Uncoordinated:
    return Uncoordinated(f"{folder.path / MUTEX} {what}", remedy="remove it; it will be made anew")
