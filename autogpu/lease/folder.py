"""The one folder of a host where leases lie, whether it can be trusted, and the mutex, which is its own lock."""

from __future__ import annotations

import enum
import errno
import os
import stat
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Mapping

from autogpu.errors import ignoring, raise_if_from_script
from autogpu.frozen import Value
from autogpu.lease import locks
from autogpu.lease.model import Fault, LeaseProblem, LeaseUnavailable, NoFolderYet
from autogpu.lease.mounts import mounts_of
from autogpu.process import monotonic_s
from autogpu.users import UNKNOWN_UID
from autogpu.variables import LEASE_DIR

HOST_FOLDER = Path("/run/autogpu")

# Not /dev/shm, where logind removes a user's files at logout (RemoveIPC), nor /tmp, which services and
# containers have privately. The number is the protocol's.
FALLBACK_FOLDER = Path("/var/tmp/autogpu.v1")

_FOLDER_MODE = 0o1777
_CONTENT = "leases-of-autogpu"
_FOLDER_FLAGS = locks.LOOK | getattr(os, "O_DIRECTORY", 0)

# Where this process has lost its patience once: a lock that is stuck may be so for as long as it runs. By folder, since
# when it has not been had.
_AGAIN_S = 0.05
_stuck_since_s: dict[Path, float] = {}

# A holder needs about a ms.
_FIRST_PAUSE_S = 0.0002
_LONGEST_PAUSE_S = 0.004


class FolderOrigin(enum.Enum):
    """Where the name of a lease folder comes from."""

    ENVIRONMENT = "environment"
    HOST = "host"  # the administrator has made it
    FALLBACK = "fallback"  # belongs to its first user; containers and services may have their own /var/tmp


class Folder(Value):
    """A lease folder whose owner and permissions were checked.

    Attributes:
        owner_uid: May remove every lease in it.
        patience_s: How long a process waits for its mutex.
    """

    path: Path
    origin: FolderOrigin
    owner_uid: int
    patience_s: float = 2.0

    @contextmanager
    def open(self) -> Iterator[int]:
        """A descriptor of the folder, checked again: all is done relative to it, whatever the path becomes.

        Raises:
            LeaseUnavailable: It has gone, can't be trusted any more, or the system refuses what the body asks for.
        """
        try:
            with locks.Descriptor(os.open, str(self.path), _FOLDER_FLAGS) as opened:
                _refuse_untrusted(self.path, opened.status)
                yield opened.number
        except OSError as error:
            raise_if_from_script(error)
            raise LeaseUnavailable(self._unusable(error)) from error

    def is_on_fuse(self) -> bool:
        """True if locks in it may be visible only to processes that use it through the same FUSE mount."""
        try:
            with self.open() as descriptor:
                return mounts_of(descriptor).is_fuse
        except LeaseUnavailable:
            return False

    @contextmanager
    def locked(self) -> Iterator[tuple[int, LeaseProblem | None]]:
        """Hold the mutex: between choosing a GPU and claiming it no other process may choose.

        Gives the folder's descriptor, also if the mutex can't be had within ``patience_s``, and why that is so. A
        process waits so long once; until it has had it, it tries for 50 ms from then on. Threads of one process exclude
        each other like processes.

        Raises:
            LeaseUnavailable: The folder can't be opened.
        """
        mutex = locks.Descriptor()
        with self.open() as descriptor:
            # Twice: Python 3.7 and 3.8 also run signal handlers between the end of a block and its "finally".
            try:
                try:
                    yield descriptor, self._lock(mutex, descriptor)
                finally:
                    mutex.unlock_and_close()
            finally:
                mutex.unlock_and_close()

    def _lock(self, mutex: locks.Descriptor, descriptor: int) -> LeaseProblem | None:
        """Wait for the lock of the folder; return why it can't be had."""
        locks.close_in_children.add(mutex)
        begun_s = monotonic_s()
        pause_s = _FIRST_PAUSE_S
        patience_s = _AGAIN_S if self.path in _stuck_since_s else self.patience_s
        try:
            # Once more: a fork's child goes on with the other one.
            mutex.open(os.open, ".", _FOLDER_FLAGS, dir_fd=descriptor)
            while not locks.try_exclusive(mutex.number):
                now_s = monotonic_s()
                if now_s > begun_s + patience_s:
                    stuck_s = now_s - _stuck_since_s.setdefault(self.path, begun_s)
                    holder = locks.flock_holder(mutex.number)
                    return LeaseProblem(Fault.MUTEX_HELD, str(self.path), holder=holder, stuck_s=stuck_s)
                # Spread out forty waiters. Not by ``random``: the script may have seeded it.
                time.sleep(pause_s * (0.5 + os.urandom(1)[0] / 256))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        except OSError as error:
            raise_if_from_script(error)
            return self._unusable(error)
        _stuck_since_s.pop(self.path, None)
        return None

    def _unusable(self, error: OSError) -> LeaseProblem:
        return LeaseProblem(Fault.UNUSABLE, str(self.path), error.strerror or str(error), error.errno)


def find_folder(
    environ: Mapping[str, str], *, make: bool = True, host: Path = HOST_FOLDER, fallback: Path = FALLBACK_FOLDER
) -> Folder:
    """The first that exists of ``AUTOGPU_LEASE_DIR``, ``/run/autogpu`` and ``/var/tmp/autogpu.v1``.

    The one that is named by the environment and the last one are made on first use. One that exists and can't
    be trusted is never passed by for the next: half of the host would coordinate in the other one.

    Args:
        make: False for who only looks: the folder belongs to the user who makes it.

    Raises:
        LeaseUnavailable: There is none to trust; :class:`NoFolderYet` if it would have to be made.
    """
    if not locks.IS_AVAILABLE:
        raise LeaseUnavailable(LeaseProblem(Fault.NO_FLOCK))
    named = environ.get(LEASE_DIR)
    if named:
        path = Path(named)
        origin = FolderOrigin.ENVIRONMENT
        if not path.is_absolute():
            raise LeaseUnavailable(LeaseProblem(Fault.RELATIVE_PATH, named))
    elif os.path.lexists(str(host)):
        path = host
        origin = FolderOrigin.HOST
    else:
        path = fallback
        origin = FolderOrigin.FALLBACK
    try:
        if origin is not FolderOrigin.HOST and not os.path.lexists(str(path)):
            if not make and os.path.isdir(str(path.parent)):  # noqa: PTH112  (raises nothing)
                raise NoFolderYet(LeaseProblem(Fault.NO_FOLDER_YET, str(path)))
            if make:
                _make(path)
        status = path.lstat()
    except OSError as error:
        raise_if_from_script(error)
        has_parent = os.path.isdir(str(path.parent))  # noqa: PTH112
        fault = Fault.NOT_REACHED if has_parent else Fault.NO_PARENT
        raise LeaseUnavailable(LeaseProblem(fault, str(path), str(error.strerror), error.errno)) from error
    _refuse_untrusted(path, status)
    return Folder(path, origin, status.st_uid)


def _make(path: Path) -> None:
    # Complete before it is seen: between mkdir and chmod another user would find a folder that is closed to them. And
    # not empty: the rename could replace it while it is in use.
    hidden = path.parent / f".{path.name}.{os.urandom(4).hex()}"
    hidden.mkdir(mode=0o700)
    with locks.Descriptor(os.open, str(hidden), _FOLDER_FLAGS) as opened:
        try:
            os.mkdir(_CONTENT, dir_fd=opened.number)
            os.fchmod(opened.number, _FOLDER_MODE)
            hidden.rename(path)
        except OSError as error:
            raise_if_from_script(error)
            with ignoring(OSError):
                os.rmdir(_CONTENT, dir_fd=opened.number)
                hidden.rmdir()
            # Another process made it first; a sticky parent says so by EPERM. Whether it can be used, its status tells.
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.EPERM, errno.EACCES):
                raise


def _refuse_untrusted(path: Path, status: os.stat_result) -> None:
    fault = None
    if stat.S_ISLNK(status.st_mode):
        fault = Fault.SYMLINK
    elif not stat.S_ISDIR(status.st_mode):
        fault = Fault.NO_DIRECTORY
    elif not status.st_mode & stat.S_ISVTX:
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            fault = Fault.NOT_STICKY
        elif status.st_uid == UNKNOWN_UID or status.st_uid not in (0, os.geteuid()):
            fault = Fault.OTHERS
    if fault:
        raise LeaseUnavailable(LeaseProblem(fault, str(path), uid=status.st_uid))
