"""The leases and tickets of a host at one moment. Their locks show which are alive; their owners wrote the text."""

from __future__ import annotations

import errno
import os
import re
from collections import defaultdict
from typing import Iterable, Iterator, Mapping, Tuple

from autogpu import users
from autogpu.errors import raise_if_from_script
from autogpu.frozen import Value, replace
from autogpu.lease import locks, model
from autogpu.lease.folder import Folder
from autogpu.lease.model import Holder, Waiter
from autogpu.lease.mounts import Mounts, mounts_of
from autogpu.process import monotonic_s, unix_s

_Key = Tuple[int, str, int]
_File = Tuple[str, os.stat_result]

# Limits for each user, and for all users together. A folder full of files or of long texts must neither hide the claims
# of other users nor keep the mutex for seconds. A user beyond the limits loses only their own claims. Thousands of
# leases by autogpu fit.
_MAX_TEXT_BYTES = 64 * 1024
_MAX_FILES = 4096
_MAX_BYTES = 1 << 20
_MAX_FILES_OF_ALL = 2 * _MAX_FILES
_MAX_BYTES_OF_ALL = 4 * _MAX_BYTES
# Minimum for each user. One person can own tens of thousands of uids (subuids of containers), and an equal share of the
# totals above would then be zero.
_FEWEST_FILES = 8
_FEWEST_BYTES = 8 * 1024

_OURS = re.compile(r"(?:job|wait)\.[0-9]{1,10}\.[0-9]{1,10}\.[0-9a-f]{8}")

# The pid of this process, keyed by the names of its files. A forked child inherits this mapping but owns no file in it.
own_files: dict[str, int] = {}


# Errors that come from the limits of this process or the host, not from the file to be opened.
_OWN_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class UnreadableFile(Value):
    """A file with the name of a lease or ticket that can't be read. It is ignored.

    Attributes:
        uid: The file's owner; ``None`` if something is mounted on the file, because even ``stat`` could then block.
        error: Why it can't be read.
    """

    name: str
    uid: int | None
    error: OSError


class LeaseSnapshot(Value):
    """The folder at one moment.

    Attributes:
        holders: Sorted by the time of their claims.
        waiters: Sorted by the ctime of their tickets, which no process can set.
        unreadable: The files that can't be read. Any user can make such files, but each hides only its own content.
    """

    holders: tuple[Holder, ...] = ()
    waiters: tuple[Waiter, ...] = ()
    unreadable: tuple[UnreadableFile, ...] = ()

    @property
    def queue(self) -> tuple[Waiter, ...]:
        """The waiters that others may not pass."""
        return tuple(waiter for waiter in self.waiters if not waiter.is_unresponsive)


def snapshot(folder: Folder, *, is_partial: bool = False) -> LeaseSnapshot:
    """Return the present holders and waiters. Changes nothing and waits for no lock.

    Args:
        is_partial: As for :meth:`FolderReader.read`.

    Raises:
        LeaseUnavailable: The folder can't be read.
    """
    with folder.open() as descriptor:
        return FolderReader().read(descriptor, is_partial=is_partial)


class FolderReader:
    """Reads the leases and tickets of a folder repeatedly, but each text only once, because it never changes."""

    def __init__(self) -> None:
        self._known: Mapping[_Key, Holder] = {}
        self._mounts = Mounts()
        self._read_s = float("-inf")

    def read(
        self, descriptor: int, *, remove_stale: bool = False, fresh_s: float = 0.0, is_partial: bool = False
    ) -> LeaseSnapshot:
        """Return the present holders and waiters.

        Args:
            remove_stale: True to remove the files of this user's processes that have ended.
            fresh_s: If the last reading is younger than this, the files in it count as unchanged and alive.
            is_partial: True to return the readable files, instead of raising, if this process may open no more files.

        Raises:
            OSError: The folder can't be read, or this process may open no more files.
        """
        is_fresh = monotonic_s() - self._read_s < fresh_s
        now_s = unix_s()
        if not is_fresh:
            self._mounts = mounts_of(descriptor)
        by_user = self._files_by_user(descriptor)
        bytes_of_each = min(_MAX_BYTES, max(_FEWEST_BYTES, _MAX_BYTES_OF_ALL // max(len(by_user), 1)))
        left: dict[int, int] = defaultdict(lambda: bytes_of_each)
        found: dict[_Key, Holder] = {}
        unreadable = _covered_by_mounts(self._mounts)
        for name, status in _fair_parts(by_user):
            key = status.st_ctime_ns, name, status.st_ino
            value = self._known.get(key)
            if value is None or not is_fresh:
                try:
                    value = _alive(descriptor, name, status, value, left, now_s, remove_stale=remove_stale)
                except OSError as error:
                    raise_if_from_script(error)
                    if error.errno in _OWN_ERRORS and not is_partial:
                        raise
                    # Any user can make a file that nobody can open. It must not cost the others their claims.
                    unreadable += _unreadable(name, status, error)
            if value is not None:
                found[key] = value
        # Don't keep a text that could not be parsed, so that it is read next time: it may have exceeded these limits.
        self._known = {key: value for key, value in found.items() if value.pid is not None}
        if not is_fresh:
            self._read_s = monotonic_s()
        return _in_order(found, unreadable)

    def _files_by_user(self, descriptor: int) -> Mapping[int, list[_File]]:
        """Return the leases and tickets, keyed by their owner's uid. A file with several names is returned once."""
        by_user: dict[int, list[_File]] = defaultdict(list)
        seen = set()
        with os.scandir(descriptor) as entries:
            for entry in entries:
                if not _OURS.fullmatch(entry.name) or entry.name in self._mounts.inside:
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError as error:  # gone meanwhile
                    raise_if_from_script(error)
                    continue
                if status.st_ino in seen:
                    continue  # another user may have made hard links, which would use up the owner's limit
                seen.add(status.st_ino)
                by_user[users.user_of(status.st_uid)].append((entry.name, status))
        return by_user


def _unreadable(name: str, status: os.stat_result, error: OSError) -> list[UnreadableFile]:
    if error.errno == errno.ENOENT:  # removed since the folder was listed
        return []
    return [UnreadableFile(name, users.user_of(status.st_uid), error.with_traceback(None))]


def _covered_by_mounts(mounts: Mounts) -> list[UnreadableFile]:
    error = OSError(errno.EXDEV, "a file system is mounted on the file")
    return [UnreadableFile(name, None, error) for name in mounts.inside if _OURS.fullmatch(name)]


def _in_order(found: Mapping[_Key, Holder], unreadable: Iterable[UnreadableFile]) -> LeaseSnapshot:
    in_order = [found[key] for key in sorted(found)]
    holders = tuple(each for each in in_order if not isinstance(each, Waiter))
    waiters = tuple(each for each in in_order if isinstance(each, Waiter))
    return LeaseSnapshot(holders, waiters, tuple(unreadable))


def _fair_parts(by_user: Mapping[int, list[_File]]) -> Iterator[_File]:
    """Yield all files of each user with few files, and an equal number of the newest files of each other user."""
    remaining = _MAX_FILES_OF_ALL
    for number, files in enumerate(sorted(by_user.values(), key=len)):
        part = min(_MAX_FILES, max(_FEWEST_FILES, remaining // (len(by_user) - number)))
        if len(files) > part:
            # Sort by ctime, which no process can set.
            files = sorted(files, key=lambda file: file[1].st_ctime_ns)[len(files) - part :]
        remaining -= len(files)
        yield from files


def _alive(
    folder: int,
    name: str,
    status: os.stat_result,
    known: Holder | None,
    left: dict[int, int],
    now_s: float,
    *,
    remove_stale: bool,
) -> Holder | None:
    """Return a lease or ticket if it is alive, else ``None``. Read its text if it is not ``known`` yet."""
    locks.refuse_special(status)  # to open a device or a pipe may have side effects
    with locks.open_for_reading(folder, name) as opened:
        beat_s = locks.last_beat(opened.number)
        # Never remove another user's file: a live process may lock it through FUSE, and this one can't see that lock.
        if beat_s is None and remove_stale and opened.status.st_uid == os.geteuid():
            locks.unlink(folder, name)
        if beat_s is None:
            return None
        holder = known or _read(name, opened, left)
        # A ticket that has just been made has no beat yet, only its ctime.
        silent_s = now_s - (beat_s or opened.status.st_ctime)
        return replace(holder, silent_s=silent_s) if isinstance(holder, Waiter) else holder


def _read(name: str, opened: locks.Descriptor, left: dict[int, int]) -> Holder:
    kind, fields_of = (Holder, model.lease_fields) if name.startswith("job.") else (Waiter, model.ticket_fields)
    uid = users.user_of(opened.status.st_uid)
    size = opened.status.st_size
    # Read nothing of a text that is too long: a part of it would be valid only if the rest were blanks.
    most = size if size <= min(left[uid], _MAX_TEXT_BYTES) else 0
    left[uid] -= most
    try:
        fields = fields_of(os.read(opened.number, most))
    except model.MalformedRecord:
        fields = {}
    return kind(name, uid, is_mine=own_files.get(name) == os.getpid(), since_s=opened.status.st_mtime, **fields)
