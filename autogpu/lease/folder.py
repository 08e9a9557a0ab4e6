"""The one folder of a host where leases lie, and whether it can be trusted."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Mapping

from autogpu.frozen import frozen
from autogpu.lease import locks
from autogpu.lease.model import LeaseUnavailable, NoFolderYet, Uncoordinated
from autogpu.process import UNKNOWN_UID
from autogpu.variables import LEASE_DIR

HOST_FOLDER = Path("/run/autogpu")

# Not /dev/shm, where logind removes a user's files at logout (RemoveIPC), nor /tmp, which services and
# containers have privately. The number is the protocol's.
FALLBACK_FOLDER = Path("/var/tmp/autogpu.v1")

MUTEX = "mutex"
_MUTEX_MODE = 0o444  # flock needs no more than reading, so the file can be written by no user
_FOLDER_MODE = 0o1777

_HOST_SETUP = "`autogpu host-setup` as root makes one that all users of the host share"

# Absent on Windows, where nothing is claimed and yet everything imports.
_FOLDER_FLAGS = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


_NOT_STICKY = "is not sticky, so users could remove each other's leases"


@frozen
class Folder:
    """A lease folder whose owner and permissions were checked.

    Attributes:
        origin: Where its name comes from: ``"environment"``, ``"host"`` (set up by the administrator) or
            ``"fallback"``, which belongs to its first user and does not reach into containers or a service's
            private ``/var/tmp``.
        owner_uid: May remove every lease in it.
        patience_s: How long others wait for one who holds its mutex.
    """

    path: Path
    origin: str
    owner_uid: int
    patience_s: float = 2.0

    @contextmanager
    def opened(self) -> Iterator[int]:
        """A descriptor of the folder, checked again: all is done relative to it, whatever the path becomes.

        Raises:
            Uncoordinated: It has gone, or is no longer to be trusted; or the system refuses whatever the body asks for.
        """
        try:
            with locks.Descriptor(os.open, str(self.path), _FOLDER_FLAGS) as opened:
                reason = _why_not_trusted(opened.status)
                if reason:
                    raise Uncoordinated(f"the lease folder {self.path} {reason}", remedy=_HOST_SETUP)
                yield opened.number
        except OSError as error:
            # What has no number is no answer of the system's: a signal's handler may raise a TimeoutError in the body.
            if error.errno is None:
                raise
            raise self.uncoordinated(error) from error

    def uncoordinated(self, error: OSError) -> Uncoordinated:
        """The error to raise where the system refused something in this folder."""
        remedies = {
            errno.ENOSPC: "free some space or inodes on its file system",
            errno.EDQUOT: "stay below your quota on its file system",
            errno.EROFS: f"name a folder on a writable file system by {LEASE_DIR}",
            errno.EACCES: _HOST_SETUP,
            errno.EPERM: _HOST_SETUP,
            errno.ENOENT: "start again: it has been removed, and will be made again",
            errno.EMFILE: "let this process open more files (ulimit -n)",
        }
        remedy = remedies.get(error.errno or 0, f"name another folder by {LEASE_DIR}, on a local file system")
        return Uncoordinated(f"the lease folder {self.path} can't be used: {error.strerror or error}", remedy=remedy)


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
        raise LeaseUnavailable("this system has no flock, so GPUs can't be claimed", remedy="use Linux or WSL2")
    named = environ.get(LEASE_DIR)
    if named:
        path, origin = Path(named), "environment"
        if not path.is_absolute():
            raise LeaseUnavailable(f"{LEASE_DIR} is not an absolute path: {named!r}", remedy="write it out in full")
    elif os.path.lexists(str(host)):
        path, origin = host, "host"
    else:
        path, origin = fallback, "fallback"
    try:
        if origin != "host" and not os.path.lexists(str(path)):
            if not make and os.path.isdir(str(path.parent)):  # noqa: PTH112  (raises nothing)
                raise NoFolderYet(f"there is no lease folder {path} yet", remedy="the first claim makes it")
            if make:
                _make(path)
        status = path.lstat()
    except OSError as error:
        what, remedy = f"the lease folder {path} can't be used: {error.strerror}", _HOST_SETUP
        if not os.path.isdir(str(path.parent)):  # noqa: PTH112
            what = f"the lease folder {path} can't be made: there is no folder {path.parent}"
            remedy = f"make that, or name another folder by {LEASE_DIR}"
        raise LeaseUnavailable(what, remedy=remedy) from error
    reason = _why_not_trusted(status)
    if reason:
        remedy = f"`chmod +t {path}`" if reason == _NOT_STICKY else f"remove it or repair it; {_HOST_SETUP}"
        raise LeaseUnavailable(f"the lease folder {path} {reason}", remedy=remedy)
    return Folder(path, origin, status.st_uid)


def make_mutex(folder: int) -> None:
    """Put the mutex into the folder unless it is there; it appears with its final mode, whatever the umask."""
    hidden = f".{MUTEX}.{os.urandom(4).hex()}"
    with locks.Descriptor(os.open, hidden, _CREATE_FLAGS, _MUTEX_MODE, dir_fd=folder) as opened:
        try:
            locks.show_to_all(opened.number, _MUTEX_MODE)
            # A link, not a rename: that would replace the mutex on which another process has just taken the lock.
            os.link(hidden, MUTEX, src_dir_fd=folder, dst_dir_fd=folder)
        except (FileExistsError, FileNotFoundError):
            pass  # another process made it, or the holder of an earlier one removed ours as stale
        finally:
            locks.unlink(folder, hidden)


def _make(path: Path) -> None:
    # Complete before it is seen: between mkdir and chmod another user would find a folder that is closed to
    # them. With the mutex inside it is not empty, so the rename can't replace a folder that is in use.
    hidden = path.parent / f".{path.name}.{os.urandom(4).hex()}"
    hidden.mkdir(mode=0o700)
    with locks.Descriptor(os.open, str(hidden), _FOLDER_FLAGS) as opened:
        try:
            make_mutex(opened.number)
            os.fchmod(opened.number, _FOLDER_MODE)
            hidden.rename(path)
        except OSError as error:
            try:
                os.unlink(MUTEX, dir_fd=opened.number)
                hidden.rmdir()
            except OSError:
                pass
            # Another process made it first; a sticky parent says so by EPERM. Whether it can be used, its status tells.
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.EPERM, errno.EACCES):
                raise


def _why_not_trusted(status: os.stat_result) -> str | None:
    if stat.S_ISLNK(status.st_mode):
        return "is a symbolic link"
    if not stat.S_ISDIR(status.st_mode):
        return "is not a folder"
    sticky = bool(status.st_mode & stat.S_ISVTX)
    if not sticky and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return _NOT_STICKY
    if not sticky and (status.st_uid == UNKNOWN_UID or status.st_uid not in (0, os.geteuid())):
        return f"belongs to uid {status.st_uid} alone"
    return None
