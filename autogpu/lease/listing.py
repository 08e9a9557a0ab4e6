"""Who is alive in a folder, by the kernel's word; what they say, by theirs."""

from __future__ import annotations

import os
import re
import time

from autogpu.frozen import frozen
from autogpu.lease import entry, record
from autogpu.lease.folder import VARIABLE, Folder
from autogpu.lease.model import Holder, Uncoordinated, Waiter, Want

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.lease.entry import Entry

_MAX_ENTRIES = 4096
# Of texts in one listing, enough for thousands of ours: a folder full of long ones must not keep the mutex
# for seconds.
_MAX_BYTES = 1 << 20

_LEASE = re.compile(r"job\.[0-9]{1,10}\.[0-9]{1,10}\.[0-9a-f]{8}")
_TICKET = re.compile(r"wait\.([0-9]{10})\.[0-9]{1,10}\.[0-9]{1,10}")
_HIDDEN = re.compile(r"\.(?:job|wait|mutex)\.[0-9a-f.]{1,40}")


@frozen
class Living:
    """The folder at one moment.

    Attributes:
        holders: In the order in which they claimed.
        waiters: In the order of the queue.
    """

    holders: tuple[Holder, ...]
    waiters: tuple[Waiter, ...]

    @property
    def queue(self) -> tuple[Waiter, ...]:
        """The waiters that others have to wait for."""
        return tuple(waiter for waiter in self.waiters if not waiter.is_passed_over)


def holders(folder: Folder) -> tuple[Holder, ...]:
    """Who holds a lease at this moment, for showing; changes nothing and waits for nobody.

    Raises:
        Uncoordinated: The folder can't be read.
    """
    with folder.opened() as descriptor:
        return living(folder, descriptor).holders


def waiters(folder: Folder) -> tuple[Waiter, ...]:
    """The queue at this moment, for showing; it has those that are passed over as well.

    Raises:
        Uncoordinated: The folder can't be read.
    """
    with folder.opened() as descriptor:
        return living(folder, descriptor).waiters


def living(folder: Folder, descriptor: int, *, tidy: bool = False) -> Living:
    """Read all leases and tickets.

    Args:
        folder: For messages.
        descriptor: The opened folder.
        tidy: Remove what the dead left, where the system permits; only for the holder of the mutex, since a
            file that is just being made looks dead for an instant.

    Raises:
        Uncoordinated: The folder can't be read, or has so many files that the living can't be found among
            them.
    """
    found_holders = []
    found_waiters = []
    left_bytes = _MAX_BYTES
    for name in _names(folder, descriptor):
        ticket = _TICKET.fullmatch(name)
        if not ticket and not _LEASE.fullmatch(name):
            if tidy and _HIDDEN.fullmatch(name):
                entry.read(descriptor, name, tidy=True, max_bytes=0)
            continue
        found = entry.read(descriptor, name, tidy=tidy, max_bytes=left_bytes)
        if found is None:
            continue
        left_bytes -= len(found.text or b"")
        if ticket:
            found_waiters.append(_waiter(found, int(ticket.group(1))))
        else:
            found_holders.append(_holder(found))
    found_holders.sort(key=lambda holder: (holder.since_s or 0.0, holder.name))
    found_waiters.sort(key=lambda waiter: (waiter.place, waiter.name))
    return Living(tuple(found_holders), tuple(found_waiters))


def holder_named(descriptor: int, name: str) -> Holder | None:
    """The live holder of that file name, or ``None``. ``name`` may be anything."""
    if not _LEASE.fullmatch(name):
        return None
    found = entry.read(descriptor, name)
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
                        remedy=f"remove what does not belong there, or name another folder by {VARIABLE}",
                    )
    except OSError as error:
        raise folder.uncoordinated("can't be read", error) from error
    return names


def _holder(found: Entry) -> Holder:
    try:
        fields = record.lease_fields(found.text)
    except record.Unreadable:
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


def _waiter(found: Entry, place: int) -> Waiter:
    try:
        fields = record.ticket_fields(found.text)
    except record.Unreadable:
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
        want=Want(fields.get("count", 1), fields.get("bytes"), fields.get("uuids", ())),
    )
