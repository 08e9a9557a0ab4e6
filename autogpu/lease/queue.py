"""The queue for a GPU: first come, first served; waiters that have ended or are stopped are passed over."""

from __future__ import annotations

import os
import time
from itertools import takewhile
from typing import Callable, Generic

from autogpu.lease import locks, model
from autogpu.lease.leases import Choose, Decided, Lease, LockedFile, try_to_acquire
from autogpu.lease.model import Demand, GaveUp, QueueState, Terms, Waiter
from autogpu.lease.snapshot import FolderReader, LeaseSnapshot
from autogpu.process import monotonic_s

# How often a waiter shows that it is running, and looks at the folder.
LOOK_S = 1.0

# After a lost race the process has no ticket yet. It looks again soon, and takes one.
_NO_PLACE_S = 0.01

# How often a waiter reads the driver, which takes longer than a look at the folder.
READ_S = 2.0

# A process with more than _NEAR waiters ahead looks only every _FAR_LOOK_S: a look at 250 tickets takes 5 ms.
_NEAR = 8
_FAR_LOOK_S = 6.0


def wait_for_lease(
    lease: Lease,
    choose: Choose[Decided],
    *,
    demand: Demand,
    timeout_s: float,
    is_over: Callable[[Decided], bool] = lambda decided: False,
    on_wait: Callable[[QueueState, Decided], None] = lambda state, decided: None,
    before_look: Callable[[Decided], None] = lambda decided: None,
) -> tuple[Decided, bool]:
    """Wait in the queue until ``choose`` returns terms, and claim them. Ctrl-C ends the wait at once.

    Args:
        choose: As for :func:`autogpu.lease.choose_and_lease`, but called with only the waiters ahead of this process.
            It should leave to them the GPUs that they could use (:meth:`Demand.could_use`).
        demand: Written into the ticket, so that processes behind this one leave these GPUs to it.
        timeout_s: How long to wait in total; 0 looks once.
        is_over: Returns True for a decision after which the wait is pointless.
        on_wait: Called after each look without a result, about every second, or every six seconds if many waiters are
            ahead. Its exceptions end the wait and propagate.
        before_look: Called with the last decision, to read the driver, without the mutex. This happens about every two
            seconds, and before a claim if the last reading is half a second old. If it takes more than five seconds,
            others pass this process over.

    Returns:
        The last decision, and True if ``lease`` holds its claims.

    Raises:
        GaveUp: The process has waited for ``timeout_s``.
        LeaseUnavailable, ValueError: As for :func:`autogpu.lease.choose_and_lease`, or ``demand`` is impossible.
    """
    begun_s = read_s = monotonic_s()
    place = _Place(lease, choose, demand)
    try:
        while True:
            decided, wants = place.look()
            # Read the driver again before a claim: other jobs may have filled the GPU since the last reading.
            if wants and monotonic_s() >= read_s + LOOK_S / 2:
                before_look(decided)
                read_s = monotonic_s()
            is_held = False
            if wants:
                decided, is_held = try_to_acquire(lease, place.reader, place.choose, place)
            if is_held:
                return decided, True
            if is_over(decided):
                place.release()
                return decided, False
            waited_s = monotonic_s() - begun_s
            state = QueueState(place.ahead, demand.count, waited_s, timeout_s)
            on_wait(state, decided)
            if waited_s >= timeout_s:
                raise GaveUp(timeout_s, state.position)
            place.rest(min(begun_s + timeout_s, monotonic_s() + place.pause_s))
            if monotonic_s() >= read_s + READ_S:
                before_look(decided)
                read_s = monotonic_s()
                place.beat()
    except BaseException:  # as in choose_and_lease
        lease.release()
        place.release()
        raise


class _Place(LockedFile, Generic[Decided]):
    """The place of this process in the queue, from its first look to its lease.

    A ticket file holds the place, and vanishes with the process. The ctime of the file orders the queue, so the file is
    never renamed or changed. Only :meth:`look` makes a ticket. A process whose ticket does not beat is passed over.

    Attributes:
        ahead: Waiters ahead of this process at the last look; empty before the first.
    """

    def __init__(self, lease: Lease, choose: Choose[Decided], demand: Demand) -> None:
        super().__init__(lease.folder)
        self.ahead: tuple[Waiter, ...] = ()
        self._job = (os.geteuid(), lease.group)
        self._choose = choose
        self.reader = FolderReader()
        self._text = model.encode_ticket({**lease.identity, "group": lease.group}, demand)

    @property
    def is_taken(self) -> bool:
        return self._file.is_still_open

    @property
    def pause_s(self) -> float:
        """Seconds from this look to the next."""
        if not self.is_taken:
            return _NO_PLACE_S
        return LOOK_S if len(self.ahead) <= _NEAR else _FAR_LOOK_S

    def rest(self, until_s: float) -> None:
        while monotonic_s() < until_s:
            time.sleep(max(0.0, min(until_s - monotonic_s(), LOOK_S)))
            self.beat()

    def look(self) -> tuple[Decided, bool]:
        """Return the decision, and True if a GPU can be claimed. If none can, take a ticket."""
        with self.folder.open() as descriptor:
            decided, terms = self.choose(self.reader.read(descriptor))
            wants = terms is not None
            # The folder's owner may have removed the ticket: take a new one.
            if not wants and not self.is_in(descriptor):
                self.release()
                self.put(descriptor, model.new_name("wait"), self._text)
                # A worker that this process forks while it waits must not keep the place after this process has ended.
                locks.close_in_children.add(self._file)
        return decided, wants

    def choose(self, snapshot: LeaseSnapshot) -> tuple[Decided, Terms | None]:
        """Store the waiters ahead of this process, then choose.

        Without a ticket, all waiters are ahead. Waiters of the same job never are.
        """
        in_front = takewhile(lambda waiter: waiter.name != self.name, snapshot.waiters)
        others = (each for each in in_front if not each.group or (each.uid, each.group) != self._job)
        self.ahead = tuple(each for each in others if not each.is_unresponsive)
        return self._choose(snapshot.holders, self.ahead)
