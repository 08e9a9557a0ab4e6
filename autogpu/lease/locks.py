"""The two locks that the kernel drops at SIGKILL and that belong to the open file description.

So a fork's child shares them, and neither closing another descriptor of the same file (which loses POSIX locks) nor
the child's end drops them. The mutex is ``flock(2)``, which needs no more than the right to read: every user may take
it. A lease or a ticket is owned by a write lock of ``F_OFD_SETLK``, which needs the right to write: no one but its
user can take it, or wait for it, and asking takes no lock.
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

# A FIFO must not block us and a link must not lead us elsewhere; never O_CREAT alone, which fs.protected_regular
# forbids on another user's file in a sticky folder, even to root. Python itself lets no program inherit what it opens.
# Two are absent on Windows, where nothing is claimed and yet everything imports.
LOOK = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL

_CLOSED = -1

# Programs use small numbers, and 200 as in flock(1), for themselves: `exec 200>lock` closes what they have inherited.
_FIRST_INHERITED = 230

# Of some 4 KiB each, for which the kernel counts through all locks before it: together 20 ms, and 4,000 locks.
_MOST_PIECES = 64

# Python has these names since 3.9.
_GET_OWNER = 36
_OWN = 37

# ``struct flock``: type, whence, start, length (0: to the end) and pid, which has to be 0.
_FLOCK = struct.Struct("hhqqi4x")


class Descriptor:
    """An open file of ours.

    A signal handler of the script may raise between any two lines here. A file that is only read may then stay open.
    Whoever locks one sees to it that it is closed.

    Attributes:
        number: -1 if it is closed.
        status: Of the file, as it was opened.
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
        """Open the same once more, above 2: where a process has closed its stdin we must not become its stdin."""
        self.open(fcntl.fcntl, opened.number, fcntl.F_DUPFD_CLOEXEC, 3)

    def __enter__(self) -> Descriptor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_still_open(self) -> bool:
        """True if the number is still this file's: a daemon closes all descriptors when it starts."""
        if self.number == _CLOSED:
            return False
        try:
            now = os.fstat(self.number)
        except OSError as error:
            raise_if_from_script(error)
            return error.errno != errno.EBADF  # a file server that does not answer proves nothing
        return os.path.samestat(now, vars(self).get("status", now))  # none in a fork from within open()

    def close(self) -> None:
        with ignoring(OSError):  # the descriptor is closed even if close(2) reports an error
            # An exception of a signal handler between these statements leaves the descriptor open: add nothing here.
            number = self.number
            self.number = _CLOSED
            if number != _CLOSED:
                os.close(number)
        close_in_children.discard(self)

    def close_if_still_open(self) -> None:
        """Close it, unless the number is another file's by now."""
        if self.is_still_open:
            self.close()
        self.number = _CLOSED

    def unlock_and_close(self) -> None:
        """Drop its ``flock`` for all who share the description, and close it. Not a lease: a child may use the GPU."""
        # Not by closing alone: a child that another thread has forked meanwhile shares the description, and the lock
        # would stay until that child ends.
        try:
            if self.number != _CLOSED:
                with ignoring(OSError):  # it may never have been locked
                    fcntl.flock(self.number, fcntl.LOCK_UN)
        finally:
            self.close()

    def leave_to_programs(self) -> None:
        """Let every program that this process starts from now on keep it open, also when this process has ended."""
        for first in (_FIRST_INHERITED, 3):  # there may not be as many
            with ignoring(OSError):  # this process may open no more files, and keeps it alone
                os.set_inheritable(fcntl.fcntl(self.number, fcntl.F_DUPFD, first), True)
                return


# What no fork's child may keep: it would keep the lock when this process is killed.
close_in_children: set[Descriptor] = set()


def try_exclusive(descriptor: int) -> bool:
    """Take the lock if it is free at this moment; never waits, so Ctrl-C always gets through."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise_if_from_script(error)
        return False
    return True


def exclusive(descriptor: int) -> None:
    """Wait for the lock, for ever; a signal does not end it where the main thread does not call."""
    fcntl.flock(descriptor, fcntl.LOCK_EX)


def own(descriptor: int) -> None:
    """Lock a file that is open for writing, for as long as a process has this description open."""
    _set_owned(descriptor, fcntl.F_WRLCK, 0, 0)


def beat(descriptor: int) -> None:
    """Show those who ask :func:`last_beat` that the owner is running: the write lock begins at the time in ms.

    That changes nothing of the file, whose ctime orders the queue. The part that it lets go is not needed any more:
    had it to be locked for writing again, others could be in the way by a read lock, which they may have.
    """
    now_ms = int(unix_s() * 1000)
    _set_owned(descriptor, fcntl.F_UNLCK, 0, now_ms)
    _set_owned(descriptor, fcntl.F_WRLCK, now_ms, 0)  # it is, unless the clock was set back


def _set_owned(descriptor: int, kind: int, start: int, length: int) -> None:
    fcntl.fcntl(descriptor, _OWN, _FLOCK.pack(kind, os.SEEK_SET, start, length, 0))


def last_beat(descriptor: int) -> float | None:
    """When a process that :func:`own` s the file, by another description, was running, in Unix time.

    ``None`` if there is none; 0 if it does not :func:`beat`, or the system can't tell.
    """
    try:
        # What a read lock would have to wait for: those of others, who may not write, are not in its way.
        answer = fcntl.fcntl(descriptor, _GET_OWNER, _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
        kind, _, start, _, _ = _FLOCK.unpack(answer)
        return None if kind == fcntl.F_UNLCK else start / 1000
    except OSError as error:
        raise_if_from_script(error)
        return 0.0


def open_for_reading(folder: int, name: str) -> Descriptor:
    """Open a regular file to look at it.

    Raises:
        OSError: It is gone, it is something else, or the system refuses.
    """
    opened = Descriptor(os.open, name, LOOK, dir_fd=folder)
    refuse_special(opened.status)
    return opened


def refuse_special(status: os.stat_result) -> None:
    """Raise OSError if this is a device, a pipe, a folder or a link."""
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.ENXIO, "it is not a regular file")


def flock_holder(descriptor: int) -> tuple[int, int | None] | None:
    """Return the pid that took the ``flock``, shared or not, and its uid; ``None`` if that can't be seen.

    Without a uid the process has ended, and a fork of it may keep the lock. Right in the host's own pid namespace only:
    elsewhere the kernel translates the pid when it is asked. Only the first thousands of the host's locks are looked
    through, since anyone may hold any number. Source: ``/proc/locks``.
    """
    try:
        status = os.fstat(descriptor)
        text = _first_pieces("/proc/locks")
    except OSError as error:
        raise_if_from_script(error)
        return None
    inode = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    # A line with "->" before the kind is a process that waits.
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
    """Give a file its mode, whatever the umask."""
    # With the sticky bit systemd-tmpfiles lets a file stay that is older than a month, as long jobs' are.
    os.fchmod(descriptor, mode | stat.S_ISVTX)


def still_has_name(folder: int, name: str, status: os.stat_result) -> bool:
    """The file still has that name in the folder, also where the system can't tell."""
    try:
        return os.path.samestat(os.stat(name, dir_fd=folder, follow_symlinks=False), status)
    except OSError as error:
        raise_if_from_script(error)
        return error.errno != errno.ENOENT  # a folder that is closed to us for a while is no reason to let a lease go


def unlink(folder: int, name: str) -> None:
    """Remove a file if the system permits: in a sticky folder it may be another's."""
    with ignoring(OSError):
        os.unlink(name, dir_fd=folder)


def _after_fork_in_child() -> None:
    for opened in list(close_in_children):
        opened.close_if_still_open()


process.call_after_fork(_after_fork_in_child)
