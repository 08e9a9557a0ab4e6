"""The lease folder at one moment: which leases and tickets are alive, by the kernel; what they say, by their owners."""

from __future__ import annotations

import os
import re
from collections import defaultdict

from autogpu import process
from autogpu.frozen import frozen, replace
from autogpu.lease import locked_file, locks, record
from autogpu.lease.model import SILENCE_S, Demand, Holder, Waiter
from autogpu.process import monotonic_s

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, Mapping, Tuple

    from autogpu.lease.folder import Folder
    from autogpu.lease.locked_file import LockedFileView

    _Key = Tuple[str, int, int]
    _File = Tuple[str, os.stat_result]

# For each user, whose own claims alone are lost beyond it, and for all of them: a folder full of files or of long texts
# must neither hide what others claim nor keep the mutex for seconds. Thousands of ours fit.
_MAX_FILES = 4096
_MAX_BYTES = 1 << 20
_MAX_FILES_OF_ALL = 2 * _MAX_FILES
_MAX_BYTES_OF_ALL = 4 * _MAX_BYTES

_LEASE = re.compile(r"job\.[0-9]{1,10}\.[0-9]{1,10}\.[0-9a-f]{8}")
_TICKET = re.compile(r"wait\.([0-9]{10})\.[0-9]{1,10}\.[0-9a-f]{1,10}")
_HIDDEN = re.compile(r"\.(?:job|wait|mutex)\.[0-9a-f.]{1,40}")
_OURS = re.compile("|".join(pattern.pattern for pattern in (_LEASE, _TICKET, _HIDDEN)))


@frozen
class LeaseSnapshot:
    """The folder at one moment.

    Attributes:
        holders: In the order in which they claimed.
        waiters: In the order of the queue.
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
        # What the folder had then, by name and inode: their owners can't be others since, and it is not asked again.
        self._listed: dict[tuple[str, int], os.stat_result] = {}
        self._read_s = float("-inf")

    def read(self, descriptor: int, *, remove_stale: bool = False, fresh_s: float = 0.0) -> LeaseSnapshot:
        """Who holds and who waits at this moment.

        Args:
            descriptor: The opened folder.
            remove_stale: Remove the files of processes that have ended, where the system permits; only for the holder
                of the mutex, since a file that is just being made looks stale for an instant.
            fresh_s: What was seen alive by this reader not longer ago counts as alive.

        Raises:
            OSError: The folder can't be read.
        """
        is_fresh = monotonic_s() - self._read_s < fresh_s
        by_user = self._files_by_user(descriptor)
        reading = _Reading(descriptor, self._known, remove_stale, max_bytes=_MAX_BYTES_OF_ALL // max(len(by_user), 1))
        for name, status in _fair_parts(by_user):
            reading.add(name, status if is_fresh else None)
        self._known = reading.found
        if not is_fresh:
            self._read_s = monotonic_s()
        found = reading.found.values()
        holders = [each for each in found if isinstance(each, Holder)]
        waiters = [each for each in found if isinstance(each, Waiter)]
        holders.sort(key=lambda holder: (holder.since_s or 0.0, holder.name))
        waiters.sort(key=lambda waiter: waiter.order)
        return LeaseSnapshot(tuple(holders), tuple(waiters))

    def has_new_lease(self, descriptor: int, own: str) -> bool:
        """Since the last reading a lease has appeared, other than ``own``."""
        with os.scandir(descriptor) as entries:
            return any(
                (entry.name, entry.inode()) not in self._listed
                for entry in entries
                if entry.name.startswith("job.") and entry.name != own and _LEASE.fullmatch(entry.name)
            )

    def _files_by_user(self, descriptor: int) -> Mapping[int, list[_File]]:
        """The leases, tickets and hidden files of each user, each once, by whatever name."""
        by_user: dict[int, list[_File]] = defaultdict(list)
        known, self._listed = self._listed, {}
        seen = set()
        with os.scandir(descriptor) as entries:
            for entry in entries:
                key = entry.name, entry.inode()
                # A ticket's time is the heartbeat of its process.
                status = None if entry.name.startswith("wait.") else known.get(key)
                if status is None:
                    if not _OURS.fullmatch(entry.name):
                        continue
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except OSError:  # gone meanwhile
                        continue
                self._listed[key] = status
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


class _Reading:
    """One look at each file.

    Attributes:
        found: What is alive.
    """

    def __init__(
        self,
        descriptor: int,
        known: Mapping[_Key, Holder | Waiter],
        remove_stale: bool,
        max_bytes: int = _MAX_BYTES,
    ) -> None:
        self.found: dict[_Key, Holder | Waiter] = {}
        self._descriptor = descriptor
        self._known = known
        self._remove_stale = remove_stale
        self._now_s = locks.file_time_s()
        self._remaining_bytes: dict[int, int] = defaultdict(lambda: min(max_bytes, _MAX_BYTES))

    def add(self, name: str, status: os.stat_result | None = None) -> None:
        """Look at the file of that name.

        Args:
            status: Of the file, where one that is known counts as alive.
        """
        if status is not None:
            key = _key(name, status)
            if self._is_known(key):
                self._found(key, self._known[key], status)
                return
        view = locked_file.view(
            self._descriptor,
            name,
            remove_stale=self._remove_stale,
            max_bytes_of=lambda status: self._wanted_bytes(name, status),
        )
        if view is None or _HIDDEN.fullmatch(name):
            return
        key = _key(name, view.status)
        self._found(key, self._known[key] if self._is_known(key) else _parsed(view), view.status)

    def _found(self, key: _Key, value: Holder | Waiter, status: os.stat_result) -> None:
        is_waiter = isinstance(value, Waiter)
        self.found[key] = replace(value, silent_s=self._now_s - status.st_mtime) if is_waiter else value

    def _wanted_bytes(self, name: str, status: os.stat_result) -> int:
        is_needed = not (_HIDDEN.fullmatch(name) or self._is_known(_key(name, status)))
        # A larger one can't be understood, and is not worth a look at its text.
        if not is_needed or status.st_size > locked_file.MAX_TEXT_BYTES:
            return 0
        user = process.user_of(status.st_uid)
        remaining = self._remaining_bytes[user]
        self._remaining_bytes[user] -= status.st_size
        return remaining

    def _is_known(self, key: _Key) -> bool:
        return key in self._known and self._known[key].is_readable


def _key(name: str, status: os.stat_result) -> _Key:
    # A heartbeat changes a ticket's times, and nothing else.
    changed_ns = 0 if name.startswith("wait.") else status.st_ctime_ns
    return name, status.st_ino, changed_ns


def holder_named(descriptor: int, name: str) -> Holder | None:
    """The live holder of that file name, or ``None``. ``name`` may be anything."""
    if not _LEASE.fullmatch(name):
        return None
    reading = _Reading(descriptor, {}, remove_stale=False)
    reading.add(name)
    holder = next(iter(reading.found.values()), None)
    return holder if isinstance(holder, Holder) else None


def is_waiting(descriptor: int, name: str) -> bool:
    """The process of that ticket is there and running, as far as its heartbeat tells.

    Raises:
        OSError: The system can't tell, such as where too many files are open.
    """
    found = locked_file.view(descriptor, name, max_bytes_of=lambda status: 0)
    return found is not None and abs(locks.file_time_s() - found.status.st_mtime) < SILENCE_S


def ticket_place(name: str) -> int | None:
    """The place of a ticket of that file name; ``None`` for another file's."""
    ticket = _TICKET.fullmatch(name)
    return int(ticket.group(1)) if ticket else None


def _parsed(view: LockedFileView) -> Holder | Waiter:
    place = ticket_place(view.name)
    return _holder(view) if place is None else _waiter(view, place)


def _holder(found: LockedFileView) -> Holder:
    try:
        fields = record.lease_fields(found.text)
    except record.MalformedRecord:
        fields = {}
    return Holder(
        name=found.name,
        uid=process.user_of(found.status.st_uid),
        is_mine=found.is_mine,
        is_readable=bool(fields),
        pid=fields.get("pid"),
        pid_namespace=fields.get("pidns"),
        start_time=fields.get("start"),
        since_s=fields.get("t"),
        script=fields.get("script", ""),
        group=fields.get("group", ""),
        claims=fields.get("gpus", {}),
        caps=fields.get("caps", {}),
    )


def _waiter(found: LockedFileView, place: int) -> Waiter:
    try:
        fields = record.ticket_fields(found.text)
    except record.MalformedRecord:
        fields = {}
    return Waiter(
        name=found.name,
        place=place,
        uid=process.user_of(found.status.st_uid),
        is_mine=found.is_mine,
        is_readable=bool(fields),
        silent_s=0.0,  # see _Reading
        pid=fields.get("pid"),
        pid_namespace=fields.get("pidns"),
        start_time=fields.get("start"),
        since_s=fields.get("t"),
        script=fields.get("script", ""),
        demand=Demand(fields.get("count", 1), fields.get("bytes"), fields.get("uuids", ()), fields.get("per_user")),
        group=fields.get("group", ""),
    )
