"""The lease folder at one moment: which leases and tickets are alive, by the kernel; what they say, by their owners."""

from __future__ import annotations

import os
import re
from collections import defaultdict

from autogpu import process
from autogpu.frozen import frozen, replace
from autogpu.lease import locked_file, locks, record
from autogpu.lease.model import Demand, Holder, Waiter
from autogpu.process import monotonic_s

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator, Mapping, Tuple

    from autogpu.lease.folder import Folder
    from autogpu.lease.locked_file import LockedFileView

    _Key = Tuple[int, str, int]
    _File = Tuple[str, os.stat_result]

# For each user, whose own claims alone are lost beyond it, and for all of them: a folder full of files or of long texts
# must neither hide what others claim nor keep the mutex for seconds. Thousands of ours fit.
_MAX_FILES = 4096
_MAX_BYTES = 1 << 20
_MAX_FILES_OF_ALL = 2 * _MAX_FILES
_MAX_BYTES_OF_ALL = 4 * _MAX_BYTES

_LEASE = re.compile(r"job\.[0-9]{1,10}\.[0-9]{1,10}\.[0-9a-f]{8}")
_OURS = re.compile(r"(?:job|wait)\.[0-9]{1,10}\.[0-9]{1,10}\.[0-9a-f]{8}|\.(?:job|wait|mutex)\.[0-9a-f.]{1,40}")


@frozen
class LeaseSnapshot:
    """The folder at one moment.

    Attributes:
        holders: In the order in which they claimed.
        waiters: In the order in which the kernel saw them come: no process can set the ctime of a file.
    """

    holders: tuple[Holder, ...] = ()
    waiters: tuple[Waiter, ...] = ()

    @property
    def queue(self) -> tuple[Waiter, ...]:
        """The waiters that others have to wait for."""
        return tuple(waiter for waiter in self.waiters if not waiter.is_unresponsive)


def snapshot(folder: Folder) -> LeaseSnapshot:
    """Who holds and who waits, for showing; changes nothing and waits for no lock.

    Raises:
        Uncoordinated: The folder can't be read.
    """
    with folder.opened() as descriptor:
        return FolderReader().read(descriptor)


class FolderReader:
    """Reads the leases and tickets of a folder, again and again; each text once, since a file's never changes."""

    def __init__(self) -> None:
        self._known: Mapping[_Key, Holder | Waiter] = {}
        self._read_s = float("-inf")
        self._now_s = 0.0

    def read(self, descriptor: int, *, remove_stale: bool = False, fresh_s: float = 0.0) -> LeaseSnapshot:
        """Who holds and who waits at this moment.

        Args:
            descriptor: The opened folder.
            remove_stale: Remove the files of processes that have ended, where the system permits; only for the holder
                of the mutex, since a file that is just being made looks stale for an instant.
            fresh_s: What was seen alive by this reader not longer ago is taken as it was then.

        Raises:
            OSError: The folder can't be read.
        """
        is_fresh = monotonic_s() - self._read_s < fresh_s
        self._now_s = locks.file_time_s()
        by_user = self._files_by_user(descriptor)
        bytes_of_each = min(_MAX_BYTES, _MAX_BYTES_OF_ALL // max(len(by_user), 1))
        remaining: dict[int, int] = defaultdict(lambda: bytes_of_each)
        found: dict[_Key, Holder | Waiter] = {}
        for name, status in _fair_parts(by_user):
            key = status.st_ctime_ns, name, status.st_ino
            value = self._known.get(key)
            if value is None or not is_fresh:
                value = self._look(descriptor, name, status, value, remaining, remove_stale)
            if value is not None:
                found[key] = value
        # The text of one that can't be read may have been too much for this time.
        self._known = {key: value for key, value in found.items() if value.is_readable}
        if not is_fresh:
            self._read_s = monotonic_s()
        in_order = [found[key] for key in sorted(found)]
        return LeaseSnapshot(
            tuple(each for each in in_order if isinstance(each, Holder)),
            tuple(each for each in in_order if isinstance(each, Waiter)),
        )

    def _look(
        self,
        descriptor: int,
        name: str,
        status: os.stat_result,
        known: Holder | Waiter | None,
        remaining: dict[int, int],
        remove_stale: bool,
    ) -> Holder | Waiter | None:
        """The live lease or ticket of that name; takes its text from the bytes that its user may have ``remaining``."""
        user, is_hidden, most = process.user_of(status.st_uid), name.startswith("."), 0
        # A larger one can't be understood, and is not worth a look at its text.
        if known is None and not is_hidden and status.st_size <= locked_file.MAX_TEXT_BYTES:
            most = min(remaining[user], locked_file.MAX_TEXT_BYTES)
        view = locked_file.view(descriptor, name, remove_stale=remove_stale, max_bytes=most)
        if view is None or is_hidden:
            return None
        remaining[user] -= most if view.text is None else len(view.text)
        value = known or _parsed(view)
        return replace(value, silent_s=self._now_s - view.beat_s) if isinstance(value, Waiter) else value

    def _files_by_user(self, descriptor: int) -> Mapping[int, list[_File]]:
        """The leases, tickets and hidden files of each user, each once, by whatever name."""
        by_user: dict[int, list[_File]] = defaultdict(list)
        seen = set()
        with os.scandir(descriptor) as entries:
            for entry in entries:
                if not _OURS.fullmatch(entry.name):
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:  # gone meanwhile
                    continue
                if status.st_ino in seen:
                    continue  # another user may have given it names, at its owner's expense
                if not entry.name.startswith("."):  # it may just be given its own
                    seen.add(status.st_ino)
                by_user[process.user_of(status.st_uid)].append((entry.name, status))
        return by_user


def _fair_parts(by_user: Mapping[int, list[_File]]) -> Iterator[_File]:
    """All files of users who have few; of the others each as many as of any other, the newest."""
    remaining = _MAX_FILES_OF_ALL
    for number, files in enumerate(sorted(by_user.values(), key=len)):
        part = min(_MAX_FILES, remaining // (len(by_user) - number))
        if len(files) > part:
            # No process can set this time.
            files = sorted(files, key=lambda file: file[1].st_ctime_ns)[len(files) - part :]
        remaining -= len(files)
        yield from files


def holder_named(descriptor: int, name: str) -> Holder | None:
    """The live holder of that file name, or ``None``. ``name`` may be anything."""
    view = locked_file.view(descriptor, name) if _LEASE.fullmatch(name) else None
    holder = _parsed(view) if view is not None else None
    return holder if isinstance(holder, Holder) else None


def _parsed(view: LockedFileView) -> Holder | Waiter:
    is_lease = view.name.startswith("job.")
    try:
        fields = record.lease_fields(view.text) if is_lease else record.ticket_fields(view.text)
    except record.MalformedRecord:
        fields = {}
    common: dict[str, Any] = {
        "name": view.name,
        "uid": process.user_of(view.status.st_uid),
        "is_mine": view.is_mine,
        "is_readable": bool(fields),
        "pid": fields.get("pid"),
        "pid_namespace": fields.get("pidns"),
        "start_time": fields.get("start"),
        "since_s": fields.get("t"),
        "script": fields.get("script", ""),
        "group": fields.get("group", ""),
    }
    if is_lease:
        gpus, caps, run = fields.get("gpus", {}), fields.get("caps", {}), fields.get("run", "")
        return Holder(claims=gpus, caps=caps, run=run, **common)
    uuids, joins = fields.get("uuids", ()), fields.get("joins", False)
    demand = Demand(fields.get("count", 1), fields.get("bytes"), uuids, joins, fields.get("per_user", 0))
    return Waiter(silent_s=0.0, demand=demand, **common)
