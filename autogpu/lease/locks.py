"""The two kinds of file locks. Both belong to an open file description, and the kernel drops them at SIGKILL.

A forked child shares such a lock. The lock stays if the child ends. It also stays if another descriptor of the same
file is closed, unlike a POSIX lock.

The mutex is ``flock(2)``. It needs only read permission, so every user can take it. A lease or a ticket is owned by a
write lock of ``F_OFD_SETLK``. That needs write permission, so only the file's user can take the lock or wait for it. A
process that asks whether a file is locked takes no lock.
"""

from __future__ import annotations

import errno
import io
import os
import re
import stat
import struct
from typing import Callable

from autogpu import process, users
from autogpu.errors import ignoring, raise_if_from_script
from autogpu.process import unix_s

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


IS_AVAILABLE = fcntl is not None

# O_NONBLOCK: a FIFO must not block us. O_NOFOLLOW: a link must not lead us to another file. Windows has neither, and
# autogpu claims nothing there, but this module is imported. Never O_CREAT without O_EXCL: fs.protected_regular forbids
# that on another user's file in a sticky folder, even to root. O_CLOEXEC is missing because Python sets it.
LOOK = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL

_CLOSED = -1

# Programs use small descriptor numbers, and 200 as in flock(1): `exec 200>lock` closes an inherited descriptor 200.
_FIRST_INHERITED = 230

# Pieces of /proc/locks to read, of about 4 KiB each. For each piece the kernel counts all locks before it. 64 pieces
# have 4,000 locks and take 20 ms.
_MOST_PIECES = 64

# F_OFD_GETLK and F_OFD_SETLK. The module fcntl has these names since Python 3.9.
_GET_OWNER = 36
_OWN = 37

# ``struct flock``: type, whence, start, length (0: to the end) and pid, which has to be 0.
_FLOCK = struct.Struct("hhqqi4x")


class Descriptor:
    """A file that autogpu has opened.

    A signal handler of the script may raise between any two lines here. A file that is only read may then stay open.
    A caller that locks a file has to make sure that it is closed.

    Attributes:
        number: The descriptor; -1 if the file is closed.
        status: ``fstat`` of the file when it was opened.
    """

    status: os.stat_result

    def __init__(self, call: Callable[..., int] | None = None, *arguments: object, **options: object) -> None:
        self.number = _CLOSED
        if call is not None:
            self.open(call, *arguments, **options)

    def open(self, call: Callable[..., int], *arguments: object, **options: object) -> None:
        self.close_if_still_open()
        vars(self).pop("status", None)
        try:
            self.number = call(*arguments, **options)
            self.status = os.fstat(self.number)
        except BaseException:
            self.close()
            raise

    def open_above_standard(self, opened: Descriptor) -> None:
        """Duplicate ``opened`` with a number above 2, so that it does not become the stdin of a process without one."""
        self.open(fcntl.fcntl, opened.number, fcntl.F_DUPFD_CLOEXEC, 3)

    def __enter__(self) -> Descriptor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_still_open(self) -> bool:
        """True if the descriptor still refers to this file. A process that becomes a daemon closes them all."""
        if self.number == _CLOSED:
            return False
        try:
            now = os.fstat(self.number)
        except OSError as error:
            raise_if_from_script(error)
            return error.errno != errno.EBADF  # a file server that does not answer leaves the file open
        return os.path.samestat(now, vars(self).get("status", now))  # no status yet after a fork within open()

    def close(self) -> None:
        with ignoring(OSError):  # the descriptor is closed even if close(2) reports an error
            # An exception of a signal handler between these statements leaves the descriptor open: add nothing here.
            number = self.number
            self.number = _CLOSED
            if number != _CLOSED:
                os.close(number)
        close_in_children.discard(self)

    def close_if_still_open(self) -> None:
        if self.is_still_open:
            self.close()
        self.number = _CLOSED

    def unlock_and_close(self) -> None:
        """Drop the ``flock`` for all processes that share the description, and close the file.

        Never call this for a lease, because a forked child may still use the lease's GPU.
        """
        # To close the file is not enough: if another thread has forked meanwhile, the child shares the description, and
        # the lock would stay until the child ends.
        try:
            if self.number != _CLOSED:
                with ignoring(OSError):  # the file may never have been locked
                    fcntl.flock(self.number, fcntl.LOCK_UN)
        finally:
            self.close()

    def leave_to_programs(self) -> None:
        """Let programs that this process starts from now on keep the file open, even after this process has ended."""
        for first in (_FIRST_INHERITED, 3):  # the limit of open files may be below 230
            with ignoring(OSError):  # at the limit, no program inherits the file
                os.set_inheritable(fcntl.fcntl(self.number, fcntl.F_DUPFD, first), True)
                return


# Files that a forked child closes. Otherwise the child would keep the lock after this process has been killed.
close_in_children: set[Descriptor] = set()


def try_exclusive(descriptor: int) -> bool:
    """Take the ``flock`` and return True if it is free. Never waits, so Ctrl-C always has an effect."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise_if_from_script(error)
        return False
    return True


def exclusive(descriptor: int) -> None:
    """Wait for the ``flock`` without a time limit. Outside the main thread, no signal ends the wait."""
    fcntl.flock(descriptor, fcntl.LOCK_EX)


def own(descriptor: int) -> None:
    """Lock a file that is open for writing, as long as a process has this description open."""
    _set_owned(descriptor, fcntl.F_WRLCK, 0, 0)


def beat(descriptor: int) -> None:
    """Move the start of the write lock to the present Unix time in ms, for :func:`last_beat`.

    This does not change the file, whose ctime orders the queue. The bytes before the start stay unlocked. Any user may
    set a read lock there, which would prevent a new write lock.
    """
    now_ms = int(unix_s() * 1000)
    _set_owned(descriptor, fcntl.F_UNLCK, 0, now_ms)
    _set_owned(descriptor, fcntl.F_WRLCK, now_ms, 0)  # already locked, unless the clock was set back


def _set_owned(descriptor: int, kind: int, start: int, length: int) -> None:
    fcntl.fcntl(descriptor, _OWN, _FLOCK.pack(kind, os.SEEK_SET, start, length, 0))


def last_beat(descriptor: int) -> float | None:
    """Return the time of the owner's last :func:`beat`, in Unix time; ``None`` if no process owns the file.

    The result is 0 if the owner does not beat, or if the system can't check the lock. The owner must have locked the
    file through another description.
    """
    try:
        # Ask which lock blocks a read lock: the owner's write lock does. Other users can't write the file, so they can
        # only have read locks, which don't.
        answer = fcntl.fcntl(descriptor, _GET_OWNER, _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
        kind, _, start, _, _ = _FLOCK.unpack(answer)
        return None if kind == fcntl.F_UNLCK else start / 1000
    except OSError as error:
        raise_if_from_script(error)
        return 0.0


def open_for_reading(folder: int, name: str) -> Descriptor:
    """Open a file for reading. Raises ``OSError`` if it is gone, is not a regular file, or the system refuses."""
    opened = Descriptor(os.open, name, LOOK, dir_fd=folder)
    refuse_special(opened.status)
    return opened


def refuse_special(status: os.stat_result) -> None:
    """Raise OSError if this is a device, a pipe, a folder or a link."""
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.ENXIO, "not a regular file")


def flock_holder(descriptor: int) -> tuple[int, int | None] | None:
    """Return pid and uid of the process that took the ``flock``, shared or exclusive; ``None`` if no lock is found.

    The uid is ``None`` if the process has ended; a fork of it may keep the lock. The pid is right only in the host's
    own pid namespace. In another one, the kernel translates the pid when ``/proc/locks`` is read; if the process has
    ended by then, the kernel may find no process, or a newer one with the same pid. Only the first 4,000 or so locks of
    the host are searched, because any user may hold any number of locks. Source: ``/proc/locks``.
    """
    try:
        status = os.fstat(descriptor)
        text = _first_pieces("/proc/locks")
    except OSError as error:
        raise_if_from_script(error)
        return None
    inode = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    # A line with "->" before the kind is a process that waits, and does not match.
    taken = rf"^\d+: FLOCK +\S+ +(?:WRITE|READ) +(\d+) +{inode} "
    found = re.search(taken, text, re.MULTILINE)
    if found is None or found.group(1) == "0":
        return None
    pid = int(found.group(1))
    return pid, users.owner(pid)


def _first_pieces(path: str) -> str:
    found = []
    with io.FileIO(path) as file:
        for _ in range(_MOST_PIECES):
            piece = file.read(1 << 16)
            if not piece:
                break
            found.append(piece)
    return b"".join(found).decode(errors="replace")


def show_to_all(descriptor: int, mode: int) -> None:
    """Set the mode of a file, whatever the umask is. Also set the sticky bit."""
    # systemd-tmpfiles removes files older than a month, such as a long job's lease, but not with the sticky bit.
    os.fchmod(descriptor, mode | stat.S_ISVTX)


def still_has_name(folder: int, name: str, status: os.stat_result) -> bool:
    """True if the file still has that name in the folder, or if the system can't check this."""
    try:
        return os.path.samestat(os.stat(name, dir_fd=folder, follow_symlinks=False), status)
    except OSError as error:
        raise_if_from_script(error)
        return error.errno != errno.ENOENT  # a folder that can't be reached for a while does not end a lease


def unlink(folder: int, name: str) -> None:
    """Remove a file if the system permits that. In a sticky folder the file may belong to another user."""
    with ignoring(OSError):
        os.unlink(name, dir_fd=folder)


def _after_fork_in_child() -> None:
    for opened in list(close_in_children):
        opened.close_if_still_open()


process.call_after_fork(_after_fork_in_child)
