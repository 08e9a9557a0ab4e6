"""The host's mutex: between choosing a GPU and claiming it no other process may choose."""

from __future__ import annotations

import errno
import os
import stat
import time
from contextlib import contextmanager
from typing import Callable, Iterator

from autogpu.lease import locks
from autogpu.lease.folder import MUTEX, Folder, make_mutex
from autogpu.lease.model import Uncoordinated
from autogpu.process import monotonic_s

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

# A hundred jobs that start at once pass the mutex on for longer than one holder may keep it, and nothing is wrong with
# that. Holders that change in order to keep others out gain no more than so many times its patience.
_MOST_HOLDERS = 5

# Where this process has lost its patience once: a lock that is stuck may be so for as long as it runs. By folder, since
# when it has not been had.
_AGAIN_S = 0.05
_stuck_since_s: dict[Path, float] = {}

# A holder needs about a ms.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0002, 0.004

# A FIFO must not block us and a link must not lead us elsewhere; never O_CREAT, which fs.protected_regular
# forbids on another user's file in a sticky folder, even to root.
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


@contextmanager
def held_if_possible(
    folder: Folder, while_waiting: Callable[[], None] = lambda: None
) -> Iterator[tuple[int, Uncoordinated | None]]:
    """Hold the mutex; gives the folder's descriptor, also where the mutex can't be had, and why that is so.

    A holder that keeps it for ``folder.patience_s`` is waited for no longer; the reason names it. A process waits so
    long once: where the mutex could not be had, it is tried for 50 ms until it can be. ``while_waiting`` is called now
    and then where it does not come at once. Threads of one process exclude each other like processes.

    Raises:
        Uncoordinated: The folder can't be opened.
    """
    with folder.opened() as descriptor:
        mutex = problem = None
        try:
            try:
                mutex = _taken(folder, descriptor, while_waiting)
            except Uncoordinated as error:
                # Without what it passed through, which is this as well: it would keep all of that alive.
                problem = error.with_traceback(None)
            except OSError as error:
                if error.errno is None:  # a signal's handler, as in opened()
                    raise
                problem = folder.uncoordinated(error)
            yield descriptor, problem
        finally:
            if mutex is not None:
                _let_go(mutex)


def _taken(folder: Folder, descriptor: int, while_waiting: Callable[[], None]) -> locks.Descriptor:
    begun_s = monotonic_s()
    while True:
        mutex = _open(folder, descriptor)
        try:
            _lock(folder, mutex.number, begun_s, while_waiting)
            if locks.is_named(descriptor, MUTEX, mutex.status):
                _stuck_since_s.pop(folder.path, None)
                return mutex
        except BaseException:
            _let_go(mutex)
            raise
        # It was removed while we waited, and others may hold its successor by now.
        _let_go(mutex)
        if monotonic_s() > begun_s + folder.patience_s:
            what = f"{folder.path / MUTEX} is replaced again and again"
            raise Uncoordinated(what, remedy=f"see who does it in {folder.path}")


def _lock(folder: Folder, mutex: int, begun_s: float, while_waiting: Callable[[], None]) -> None:
    patience_s = _AGAIN_S if folder.path in _stuck_since_s else folder.patience_s
    holder: str | None = ""
    kept_since_s, look_s, pause_s = begun_s, begun_s + patience_s / 4, _FIRST_PAUSE_S
    while not locks.try_exclusive(mutex):
        now_s = monotonic_s()
        if now_s > look_s:
            while_waiting()
            before, holder = holder, locks.holder(mutex)
            kept_since_s = kept_since_s if before in ("", holder) else now_s
            if now_s > min(kept_since_s + 0.9 * patience_s, begun_s + patience_s * _MOST_HOLDERS):
                who = holder or "a process that can't be seen from here"
                stuck_s = now_s - _stuck_since_s.setdefault(folder.path, begun_s)
                what = f"{folder.path / MUTEX} has been held for {stuck_s:.0f} s by {who}"
                raise Uncoordinated(what, remedy="if it is stuck, end that process")
            look_s = now_s + patience_s / 4
        # Spread, or forty waiters would try at the same instant. Not by ``random``: the script may have seeded it.
        time.sleep(pause_s * (0.5 + os.urandom(1)[0] / 256))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _let_go(mutex: locks.Descriptor) -> None:
    # Explicitly, not by closing alone: a child that another thread has forked meanwhile shares the description, and the
    # lock would stay until that child ends.
    try:
        locks.unlock(mutex.number)
    finally:
        mutex.close()


def _open(folder: Folder, descriptor: int) -> locks.Descriptor:
    try:
        try:
            mutex = locks.Descriptor(os.open, MUTEX, _FLAGS, dir_fd=descriptor)
        except FileNotFoundError:
            make_mutex(descriptor)
            mutex = locks.Descriptor(os.open, MUTEX, _FLAGS, dir_fd=descriptor)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _broken(folder, "is a symbolic link") from error
        raise
    if not stat.S_ISREG(mutex.status.st_mode):  # one could hang on a FIFO
        mutex.close()
        raise _broken(folder, "is not a plain file")
    locks.close_in_children.add(mutex)
    return mutex


def _broken(folder: Folder, what: str) -> Uncoordinated:
    return Uncoordinated(f"{folder.path / MUTEX} {what}", remedy="remove it; it will be made anew")
