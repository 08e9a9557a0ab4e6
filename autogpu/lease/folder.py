"""The lease folder of a host: its path, the check whether it can be trusted, and the mutex, a lock on the folder."""

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

# Not /dev/shm: logind removes a user's files there at logout (RemoveIPC). Not /tmp: services and containers have a
# private one. The number in the name is the version of the protocol.
FALLBACK_FOLDER = Path("/var/tmp/autogpu.v1")

_FOLDER_MODE = 0o1777
_CONTENT = "leases-of-autogpu"
_FOLDER_FLAGS = locks.LOOK | getattr(os, "O_DIRECTORY", 0)

# When this process began to wait for a mutex that it did not get, keyed by the folder's path. A stuck mutex may stay
# stuck as long as this process runs, so each later attempt waits only _AGAIN_S.
_AGAIN_S = 0.05
_stuck_since_s: dict[Path, float] = {}

# Pauses between two attempts to get the mutex. A process holds it for about a millisecond.
_FIRST_PAUSE_S = 0.0002
_LONGEST_PAUSE_S = 0.004


class FolderOrigin(enum.Enum):
    """The origin of a lease folder's path."""

    ENVIRONMENT = "environment"
    HOST = "host"  # made by the administrator
    FALLBACK = "fallback"  # belongs to its first user; containers and services may have their own /var/tmp


class Folder(Value):
    """A lease folder whose owner and permissions were checked.

    Attributes:
        owner_uid: The user who may remove every lease in the folder.
        patience_s: How long a process waits for the mutex.
    """

    path: Path
    origin: FolderOrigin
    owner_uid: int
    patience_s: float = 2.0

    @contextmanager
    def open(self) -> Iterator[int]:
        """Yield a descriptor of the folder, after another check of its owner and permissions.

        All system calls in the folder use this descriptor, so they still reach this folder if the path changes.

        Raises:
            LeaseUnavailable: The folder is gone or can't be trusted any more, or a system call in the body failed.
        """
        try:
            with locks.Descriptor(os.open, str(self.path), _FOLDER_FLAGS) as opened:
                _refuse_untrusted(self.path, opened.status)
                yield opened.number
        except OSError as error:
            raise_if_from_script(error)
            raise LeaseUnavailable(self._unusable(error)) from error

    def is_on_fuse(self) -> bool:
        """True if the folder is on FUSE. Only processes that use the same FUSE mount may then see its locks."""
        try:
            with self.open() as descriptor:
                return mounts_of(descriptor).is_fuse
        except LeaseUnavailable:
            return False

    @contextmanager
    def locked(self) -> Iterator[tuple[int, LeaseProblem | None]]:
        """Hold the mutex, so that no other process chooses a GPU between this process's choice and its claim.

        Yield the folder's descriptor, and the problem if the mutex can't be taken within ``patience_s``. The body also
        runs without the mutex. After such a failure, each later call waits only 50 ms, until a call gets the mutex.
        Threads of one process exclude each other like processes.

        Raises:
            LeaseUnavailable: The folder can't be opened.
        """
        mutex = locks.Descriptor()
        with self.open() as descriptor:
            # Two nested blocks: Python 3.7 and 3.8 run signal handlers even between the end of a block and "finally".
            try:
                try:
                    yield descriptor, self._lock(mutex, descriptor)
                finally:
                    mutex.unlock_and_close()
            finally:
                mutex.unlock_and_close()

    def _lock(self, mutex: locks.Descriptor, descriptor: int) -> LeaseProblem | None:
        locks.close_in_children.add(mutex)
        begun_s = monotonic_s()
        pause_s = _FIRST_PAUSE_S
        patience_s = _AGAIN_S if self.path in _stuck_since_s else self.patience_s
        try:
            # Open the folder again for the lock: a forked child closes the mutex and goes on with ``descriptor``.
            mutex.open(os.open, ".", _FOLDER_FLAGS, dir_fd=descriptor)
            while not locks.try_exclusive(mutex.number):
                now_s = monotonic_s()
                if now_s > begun_s + patience_s:
                    stuck_s = now_s - _stuck_since_s.setdefault(self.path, begun_s)
                    holder = locks.flock_holder(mutex.number)
                    return LeaseProblem(Fault.MUTEX_HELD, str(self.path), holder=holder, stuck_s=stuck_s)
                # Random pauses prevent simultaneous attempts. Don't use ``random``: the script may have seeded it.
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
    """Return the lease folder of this host.

    It is ``AUTOGPU_LEASE_DIR`` if that is set, else ``/run/autogpu`` if that exists, else ``/var/tmp/autogpu.v1``. The
    first and the last of these are made on first use. A folder that can't be trusted is an error. It is not skipped for
    the next one: the processes of the host would then use two folders, and not see each other's leases.

    Args:
        make: False for a caller that only reads. A new folder belongs to the user who makes it.

    Raises:
        LeaseUnavailable: The folder can't be used or trusted.
        NoFolderYet: The folder does not exist, and ``make`` is False.
    """
    if not locks.IS_AVAILABLE:
        raise LeaseUnavailable(LeaseProblem(Fault.NO_FLOCK))
    path, origin = _place(environ.get(LEASE_DIR), host, fallback)
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


def _place(named: str | None, host: Path, fallback: Path) -> tuple[Path, FolderOrigin]:
    if not named:
        return (host, FolderOrigin.HOST) if os.path.lexists(str(host)) else (fallback, FolderOrigin.FALLBACK)
    path = Path(named)
    if not path.is_absolute():
        raise LeaseUnavailable(LeaseProblem(Fault.RELATIVE_PATH, named))
    return path, FolderOrigin.ENVIRONMENT


def _make(path: Path) -> None:
    # Make the folder under a hidden name, then rename it. Under its own name, other users would fail to open it between
    # mkdir and chmod. Put a folder inside, because a rename replaces an empty folder, even one that other processes
    # already use.
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
            # Another process made it first. In a sticky parent folder the error is then EPERM. The caller checks
            # whether that folder can be trusted.
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
