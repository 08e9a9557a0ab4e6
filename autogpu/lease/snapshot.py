"""The lease folder at one moment: which leases and tickets are alive, by the kernel; what they say, by their owners."""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict

from autogpu.frozen import frozen
from autogpu.lease import locked_file, record
from autogpu.lease.folder import Folder
from autogpu.lease.model import Demand, Holder, Uncoordinated, Waiter
from autogpu.variables import LEASE_DIR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping

    from autogpu.lease.locked_file import LockedFileView

_MAX_ENTRIES = 4096
# Of texts in one listing, enough for thousands of ours: a folder full of long ones must not keep the mutex
# for seconds.
_MAX_BYTES = 1 << 20

_LEASE = re.compile(r"job\.[0-9]{1,10}\.[0-9]{1,10}\.[0-9a-f]{8}")
_TICKET = re.compile(r"wait\.([0-9]{10})\.[0-9]{1,10}\.[0-9]{1,10}")
_HIDDEN = re.compile(r"\.(?:job|wait|mutex)\.[0-9a-f.]{1,40}")


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

    @property
    def pids_here(self) -> Mapping[str, int | None]:
        """By the name of a lease, its holder's pid where that means something in this pid namespace."""
        return {holder.name: holder.pid_here for holder in self.holders}


def snapshot(folder: Folder) -> LeaseSnapshot:
    """Who holds and who waits, for showing; changes nothing and waits for no lock.

    Raises:
        Uncoordinated: The folder can't be read.
    """
    with folder.opened() as descriptor:
        return read_snapshot(folder, descriptor)


def read_snapshot(folder: Folder, descriptor: int, *, remove_stale: bool = False) -> LeaseSnapshot:
    """Read all leases and tickets.

    Args:
        folder: For messages.
        descriptor: The opened folder.
        remove_stale: Remove the files of processes that have ended, where the system permits; only for the holder of
            the mutex, since a file that is just being made looks stale for an instant.

    Raises:
        Uncoordinated: The folder can't be read, or has so many files that the live ones can't be found among
            them.
    """
    holders = []
    waiters = []
    # For each owner: what one user floods may not hide the claims of others.
    remaining_bytes: dict[int, int] = defaultdict(lambda: _MAX_BYTES)
    for name in _names(folder, descriptor):
        ticket = _TICKET.fullmatch(name)
        if not ticket and not _LEASE.fullmatch(name):
            if remove_stale and _HIDDEN.fullmatch(name):
                locked_file.view(descriptor, name, remove_stale=True, max_bytes_of=lambda uid: 0)
            continue
        found = locked_file.view(descriptor, name, remove_stale=remove_stale, max_bytes_of=remaining_bytes.__getitem__)
        if found is None:
            continue
        remaining_bytes[found.uid] -= len(found.text or b"")
        if ticket:
            waiters.append(_waiter(found, int(ticket.group(1))))
        else:
            holders.append(_holder(found))
    holders.sort(key=lambda holder: (holder.since_s or 0.0, holder.name))
    waiters.sort(key=lambda waiter: (waiter.place, waiter.name))
    return LeaseSnapshot(tuple(holders), tuple(waiters))


def holder_named(descriptor: int, name: str) -> Holder | None:
    """The live holder of that file name, or ``None``. ``name`` may be anything."""
    if not _LEASE.fullmatch(name):
        return None
    found = locked_file.view(descriptor, name)
    return None if found is None else _holder(found)


def _names(folder: Folder, descriptor: int) -> list[str]:
    names = []
    try:
        with os.scandir(descriptor) as entries:
            for found in entries:
                names.append(found.name)
                if len(names) > _MAX_ENTRIES:
                    # Stopping here would be a way to hide the holders that come later.
                    raise Uncoordinated(
                        f"the lease folder {folder.path} has more than {_MAX_ENTRIES} files",
                        remedy=f"remove what does not belong there, or name another folder by {LEASE_DIR}",
                    )
    except OSError as error:
        raise folder.uncoordinated("can't be read", error) from error
    return names


def _holder(found: LockedFileView) -> Holder:
    try:
        fields = record.lease_fields(found.text)
    except record.MalformedRecord:
        fields = {}
    return Holder(
        name=found.name,
        uid=found.uid,
        is_mine=found.is_mine,
        is_readable=bool(fields),
        pid=fields.get("pid"),
        pid_namespace=fields.get("pidns"),
        start_time=fields.get("start"),
        since_s=fields.get("t"),
        script=fields.get("script", ""),
        group=fields.get("group", ""),
        claims=fields.get("gpus", {}),
    )


def _waiter(found: LockedFileView, place: int) -> Waiter:
    try:
        fields = record.ticket_fields(found.text)
    except record.MalformedRecord:
        fields = {}
    return Waiter(
        name=found.name,
        place=place,
        uid=found.uid,
        is_mine=found.is_mine,
        is_readable=bool(fields),
        silent_s=time.time() - found.modified_s,
        pid=fields.get("pid"),
        pid_namespace=fields.get("pidns"),
        start_time=fields.get("start"),
        since_s=fields.get("t"),
        script=fields.get("script", ""),
        demand=Demand(fields.get("count", 1), fields.get("bytes"), fields.get("uuids", ())),
    )
