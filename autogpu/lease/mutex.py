"""The host's mutex: between choosing a GPU and claiming it no other process may choose."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from contextlib import contextmanager

from autogpu import process
from autogpu.lease import locks
from autogpu.lease.folder import MUTEX, Folder, make_mutex
from autogpu.lease.model import Uncoordinated
from autogpu.process import monotonic_s

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Callable, Iterator

DEADLINE_S = 2.0

# A hundred jobs that start at once pass the mutex on for longer than the deadline, and nothing is wrong with that: the
# deadline is for one holder. Holders that change in order to keep others out gain no more than this.
LONGEST_S = 10.0

# Where this process has lost its patience once: a lock that is stuck may be so for as long as it runs. By folder, since
# when it has not been had.
_AGAIN_S = 0.05
_stuck_since_s: dict[Path, float] = {}

# A holder needs about a ms: a few tries, and then a thread that waits in the kernel.
_PAUSES_S = (0.0002, 0.0004, 0.0008)

# Where no thread can be started: how often to try.
_POLL_S = 0.005

# A FIFO must not block us and a link must not lead us elsewhere; never O_CREAT, which fs.protected_regular
# forbids on another user's file in a sticky folder, even to root.
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


@contextmanager
def held(
    folder: Folder, deadline_s: float = DEADLINE_S, while_waiting: Callable[[], None] = lambda: None
) -> Iterator[int]:
    """As :func:`held_if_possible`, or not at all.

    Raises:
        Uncoordinated: It can't be had, or the system refuses whatever the body asks it for.
    """
    with held_if_possible(folder, deadline_s, while_waiting) as (descriptor, problem):
        if problem:
            raise problem
        yield descriptor


@contextmanager
def held_if_possible(
    folder: Folder, deadline_s: float = DEADLINE_S, while_waiting: Callable[[], None] = lambda: None
) -> Iterator[tuple[int, Uncoordinated | None]]:
    """Hold the mutex; gives the folder's descriptor, also where the mutex can't be had, and why that is so.

    A holder that keeps it for ``deadline_s`` is waited for no longer; the reason names it. A process waits so long
    once: where the mutex could not be had, it is tried for 50 ms until it can be. ``while_waiting`` is called now and
    then where it does not come at once. Threads of one process exclude each other like processes.

    Raises:
        Uncoordinated: The folder can't be opened.
    """
    with folder.opened() as descriptor:
        mutex = problem = None
        try:
            try:
                mutex = _taken(folder, descriptor, deadline_s, while_waiting)
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


def _taken(folder: Folder, descriptor: int, deadline_s: float, while_waiting: Callable[[], None]) -> locks.Descriptor:
    begun_s = monotonic_s()
    if folder.path in _stuck_since_s:
        deadline_s = min(deadline_s, _AGAIN_S)
    while True:
        mutex = _open(folder, descriptor)
        try:
            _lock(folder, mutex.number, begun_s, deadline_s, while_waiting)
            if locks.is_named(descriptor, MUTEX, mutex.status):
                _stuck_since_s.pop(folder.path, None)
                return mutex
        except BaseException:
            _let_go(mutex)
            raise
        # It was removed while we waited, and others may hold its successor by now.
        _let_go(mutex)
        if monotonic_s() > begun_s + deadline_s:
            what = f"{folder.path / MUTEX} is replaced again and again"
            raise Uncoordinated(what, remedy=f"see who does it in {folder.path}")


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


def _lock(folder: Folder, mutex: int, begun_s: float, deadline_s: float, while_waiting: Callable[[], None]) -> None:
    if locks.try_exclusive(mutex):
        return
    for pause_s in _PAUSES_S:
        # Spread, or forty waiters would try at the same instant. Not by ``random``: the script may have seeded it.
        time.sleep(pause_s * (0.5 + os.urandom(1)[0] / 512))
        if locks.try_exclusive(mutex):
            return
    waiting = _LockThread(mutex)
    holder: str | None = None
    kept_since_s, look_again_s = begun_s, begun_s + deadline_s / 4
    while True:
        now_s = monotonic_s()
        left_s = min(kept_since_s + deadline_s, begun_s + max(LONGEST_S, deadline_s)) - now_s
        if left_s <= 0:
            who = locks.holder(mutex) or "a process that can't be seen from here"
            since_s = _stuck_since_s.setdefault(folder.path, kept_since_s)
            raise Uncoordinated(
                f"{folder.path / MUTEX} has been held for {now_s - since_s:.0f} s by {who}",
                remedy="if it is stuck, end that process",
            )
        if waiting.has_come(min(left_s, max(0.0, look_again_s - now_s))):
            return
        if monotonic_s() >= look_again_s:
            while_waiting()
            before, holder = holder, locks.holder(mutex)
            look_again_s = monotonic_s() + deadline_s / 4
            if before is not None and holder != before:
                kept_since_s = monotonic_s()


class _LockThread:
    """A thread that waits for the lock in the kernel, which hands it on in order and wakes one waiter at a time.

    The main thread waits for it with a deadline, and is interrupted by Ctrl-C. Giving up closes the descriptor: a lock
    that is granted after that has no descriptor left, and the kernel drops it with the thread's call.
    """

    def __init__(self, mutex: int) -> None:
        self._has_come = threading.Lock()
        self._has_come.acquire()
        self._error: OSError | None = None
        self._polled: int | None = None
        if not process.threads_are_real():
            self._polled = mutex
            return
        try:
            threading.Thread(target=self._wait, args=(mutex,), name="autogpu-mutex", daemon=True).start()
        except RuntimeError:  # no more threads for this user
            self._polled = mutex

    def _wait(self, mutex: int) -> None:
        try:
            locks.exclusive(mutex)
        except OSError as error:
            self._error = error
        self._has_come.release()

    def has_come(self, timeout_s: float) -> bool:
        """Wait for it; raises what the system answers where it refuses."""
        if self._polled is not None:
            time.sleep(min(timeout_s, _POLL_S))
            return locks.try_exclusive(self._polled)
        if not self._has_come.acquire(timeout=timeout_s):
            return False
        if self._error:
            raise self._error
        return True


def _broken(folder: Folder, what: str) -> Uncoordinated:
    return Uncoordinated(f"{folder.path / MUTEX} {what}", remedy="remove it; it will be made anew")
