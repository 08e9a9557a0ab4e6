"""The queue for a GPU: first come, first served; waiters that have ended or are stopped are passed over.

They are woken within a millisecond of a holder's being killed: the kernel closes the descriptors of its process, and
closing one that may write is an event. ``inotify(7)``.
"""

from __future__ import annotations

import os
import struct
import time
from contextlib import closing
from itertools import takewhile
from pathlib import Path
from typing import Callable, Iterator, Mapping

from autogpu import process
from autogpu.errors import WaitTimeout
from autogpu.lease import locks, model
from autogpu.lease.leases import Choose, Lease, LockedFile, try_to_acquire
from autogpu.lease.model import Demand, QueueState, Waiter
from autogpu.lease.snapshot import FolderReader, LeaseSnapshot
from autogpu.process import monotonic_s
from autogpu.reporting.text import span

# Foreign processes that free a GPU change nothing in the folder.
HEARTBEAT_S = 2.0

# A killed holder's file is closed an instant before its lock is dropped, and the driver frees its memory some
# time after that, so the first look can come too early.
_SECOND_LOOKS_S = (0.01, 0.1, 0.5)

# To those with more than so many ahead a change is nothing, and they look every few seconds: with 250 waiters a look at
# all tickets takes 5 ms, and the processors are needed by the one that is served.
_NEAR = 8
_LONGEST_REST_S = 6.0

# The others let the ones ahead look first: two ms for the next one, 50 for the fifth. The shortest is for the head: a
# process that makes events without end must not make it spin.
_PAUSE_BY_SQUARE_S = 0.002

_CLOSE_WRITE = 0x8
_MOVED_TO = 0x80
_DELETE = 0x200
_DELETE_SELF = 0x400
_MOVE_SELF = 0x800
_IGNORED = 0x8000
_ONLYDIR = 0x01000000
_EVENTS = _CLOSE_WRITE | _MOVED_TO | _DELETE | _DELETE_SELF | _MOVE_SELF | _ONLYDIR
_FOLDER_LOST = _DELETE_SELF | _MOVE_SELF | _IGNORED

# wd, mask, cookie, and the length of the name that follows. ``inotify(7)``.
_EVENT = struct.Struct("iIII")


def wait_for_lease(
    lease: Lease,
    choose: Choose,
    *,
    demand: Demand,
    timeout_s: float,
    on_wait: Callable[[QueueState], None] = lambda state: None,
    before_look: Callable[[], None] = lambda: None,
) -> Lease:
    """Claim as soon as ``choose`` agrees, and wait in the queue until then; Ctrl-C ends it at once.

    Args:
        choose: As for :func:`autogpu.lease.acquire_lease`, but is given only the waiters ahead of this process, and
            should leave to them the GPUs that they could use (:meth:`Demand.could_use`).
        demand: What the others are told, so that they leave it to this process.
        timeout_s: How long to wait in all; 0 looks once.
        on_wait: Is called after each look without a result: the first time at once, then at least every two
            seconds for the first in the queue, every six for those far behind. What it raises ends the wait and
            comes through.
        before_look: Is called before each look but the first, while others can choose: the place to read the driver.
            One that takes more than five seconds gets this process passed over.

    Raises:
        WaitTimeout: The time is over.
        LeaseUnavailable, ValueError: As for :func:`autogpu.lease.acquire_lease`, or ``demand`` is impossible.
    """
    begun_s = monotonic_s()
    place = _Place(lease, choose, demand)
    pauses_s: Iterator[float] = iter(())
    try:
        with closing(Watch(lease.folder.path)) as watch:
            while True:
                wants = place.look()
                if wants and try_to_acquire(lease, place.reader, place.choose, place):
                    return lease
                waited_s = monotonic_s() - begun_s
                state = QueueState(place.ahead, demand.count, waited_s, timeout_s)
                on_wait(state)
                if waited_s >= timeout_s:
                    raise gave_up(timeout_s, state.position)
                pauses_s = iter(_SECOND_LOOKS_S) if wants else pauses_s
                pause_s = next(pauses_s, place.pause_s)
                if _wait_until(min(begun_s + timeout_s, monotonic_s() + pause_s), watch, place):
                    pauses_s = iter(_SECOND_LOOKS_S)
                before_look()
                place.beat()
    except BaseException:  # as in acquire_lease
        lease.release()
        place.release()
        raise


def gave_up(timeout_s: float, position: int) -> WaitTimeout:
    longer = f"to wait longer: AUTOGPU_WAIT={max(1, round(timeout_s / 1800))}h"
    what = f"gave up after {span(timeout_s)} at place {position}"
    return WaitTimeout(what, remedy=f"{longer}; `autogpu status` lists the holders")


def _wait_until(until_s: float, watch: Watch, place: _Place) -> bool:
    """Wait for a change that may matter here, alive in the eyes of the others; tell if there was one."""
    while monotonic_s() < until_s:
        left_s = min(until_s - monotonic_s(), HEARTBEAT_S)
        has_changed = place.is_near and watch.wait(left_s)
        if not place.is_near:
            time.sleep(max(0.0, left_s))
        place.beat()
        if has_changed:
            time.sleep(max(0.0, min(place.courtesy_s, until_s - monotonic_s())))
            return True
    return False


class _Place(LockedFile):
    """The place of this process in the queue, from its first look to its lease; vanishes with the process.

    A ticket holds it, and the kernel writes into that when it came: who renames or changes it comes later. There is
    none before :meth:`look`, and it has to beat as long as this process runs, or it is passed over.

    Attributes:
        ahead: Those in front at the last look; none before.
    """

    def __init__(self, lease: Lease, choose: Choose, demand: Demand) -> None:
        super().__init__(lease.folder)
        self.ahead: tuple[Waiter, ...] = ()
        self._job = (os.geteuid(), lease.group)
        self._choose = choose
        self.reader = FolderReader()
        self._text = model.encode_ticket({**lease.identity, "group": lease.group}, demand)

    @property
    def is_near(self) -> bool:
        """It may be among the next to be served."""
        return len(self.ahead) <= _NEAR

    @property
    def courtesy_s(self) -> float:
        """How long those ahead may look first."""
        return max(1, len(self.ahead)) ** 2 * _PAUSE_BY_SQUARE_S

    @property
    def pause_s(self) -> float:
        """How long to wait for a change before the next look: those far behind don't look as often."""
        return HEARTBEAT_S if self.is_near else _LONGEST_REST_S

    def look(self) -> bool:
        """Tell if a GPU could be claimed now; take a ticket if not."""
        with self.folder.opened() as descriptor:
            snapshot = self.reader.read(descriptor)
            wants = self.choose(snapshot) is not None
            # The folder's owner could have removed it.
            if not wants and not self.is_in(descriptor):
                self.release()
                self.put(descriptor, model.new_name("wait"), self._text)
                # A worker that this process forks while it waits must not keep the place after our end.
                locks.close_in_children.add(self)
        return wants

    def choose(self, snapshot: LeaseSnapshot) -> Mapping[str, int] | None:
        """Note who is ahead: all, while we have no ticket; never those of our job. Then choose."""
        in_front = takewhile(lambda waiter: waiter.name != self.name, snapshot.waiters)
        others = (each for each in in_front if not each.group or (each.uid, each.group) != self._job)
        self.ahead = tuple(each for each in others if not each.is_unresponsive)
        return self._choose(snapshot.holders, self.ahead)


class Watch(locks.Descriptor):
    """Sees leases come and go in one folder from its making on, so that none is lost between looking and waiting."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._start()

    def _start(self) -> None:
        try:
            # Here, since only those who wait need it, and there are Pythons without.
            import ctypes

            library = ctypes.CDLL(None, use_errno=True)
            self.open(library.inotify_init1, os.O_CLOEXEC | os.O_NONBLOCK)
        except (ImportError, OSError, AttributeError, TypeError):
            return
        locks.close_in_children.add(self)
        if library.inotify_add_watch(self.number, os.fsencode(str(self._folder)), _EVENTS) < 0:
            self.close()

    def wait(self, most_s: float) -> bool:
        """Wait for a change, at most ``most_s``; tell if one was seen. Ctrl-C gets through at once."""
        if not self.is_ours:
            # Others of the user's jobs have all the instances that fs.inotify.max_user_instances allows, or had them.
            self._start()
            time.sleep(max(0.0, most_s))
            return False
        until_s = monotonic_s() + most_s
        while self.is_ours and process.is_readable(self.number, until_s - monotonic_s()):
            try:
                if self._matters(os.read(self.number, 65536)):
                    return True
            except BlockingIOError:
                pass
            except OSError:  # begin anew, as for another folder
                self.close()
        return False

    def _matters(self, events: bytes) -> bool:
        begin = 0
        while begin < len(events):
            _, mask, _, length = _EVENT.unpack_from(events, begin)
            begin += _EVENT.size + length
            if mask & _FOLDER_LOST:  # there may be another one of that name by now
                self.close()
            # A lease, or one who leaves the queue. Without a name it is the folder itself, or that events were lost.
            kinds = (b"job.", b"wait.") if mask & _DELETE else (b"job.",)
            if not length or events.startswith(kinds, begin - length):
                return True
        return False
