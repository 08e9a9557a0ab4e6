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

# After a lost race there is no ticket yet: the next look takes one.
_NO_PLACE_S = 0.01

# How often it reads the driver, which takes longer than a look.
READ_S = 2.0

# Those with more than so many ahead look as rarely as this: with 250 waiters a look at all tickets takes 5 ms.
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
    """Claim as soon as ``choose`` agrees, and wait in the queue until then; Ctrl-C ends it at once.

    Args:
        choose: As for :func:`autogpu.lease.choose_and_lease`, but is given only the waiters ahead of this process, and
            should leave to them the GPUs that they could use (:meth:`Demand.could_use`).
        demand: What the others are told, so that they leave it to this process.
        timeout_s: How long to wait in all; 0 looks once.
        is_over: True for a decision after which there is nothing to wait for.
        on_wait: Is called after each look without a result, about once a second, or every six seconds for those far
            behind. What it raises ends the wait and comes through.
        before_look: Reads the driver, given the last decision. Is called about every two seconds, and before a claim
            if the last reading is half a second old, while others can choose. If it takes more than five seconds,
            others pass this process over.

    Returns:
        The last decision, and whether ``lease`` holds what it claims.

    Raises:
        GaveUp: The time is over.
        LeaseUnavailable, ValueError: As for :func:`autogpu.lease.choose_and_lease`, or ``demand`` is impossible.
    """
    begun_s = read_s = monotonic_s()
    place = _Place(lease, choose, demand)
    try:
        while True:
            decided, wants = place.look()
            # By an older reading it would join others where they have filled the GPU since.
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
            pause_s = LOOK_S if len(place.ahead) <= _NEAR else _FAR_LOOK_S
            pause_s = pause_s if place.is_taken else _NO_PLACE_S
            place.rest(min(begun_s + timeout_s, monotonic_s() + pause_s))
            if monotonic_s() >= read_s + READ_S:
                before_look(decided)
                read_s = monotonic_s()
                place.beat()
    except BaseException:  # as in acquire_lease
        lease.release()
        place.release()
        raise


class _Place(LockedFile, Generic[Decided]):
    """The place of this process in the queue, from its first look to its lease; vanishes with the process.

    A ticket file holds the place. The kernel keeps the time of its last change, so to rename or change the file moves
    it to the end. There is no ticket before :meth:`look`, and a process whose ticket does not beat is passed over.

    Attributes:
        ahead: Those in front at the last look; none before.
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
        """True if others see the place."""
        return self._file.is_still_open

    def rest(self, until_s: float) -> None:
        """Wait, and show the others meanwhile that this process is running."""
        while monotonic_s() < until_s:
            time.sleep(max(0.0, min(until_s - monotonic_s(), LOOK_S)))
            self.beat()

    def look(self) -> tuple[Decided, bool]:
        """Decide by the leases of now, and return whether a GPU could be claimed; take a ticket if not."""
        with self.folder.open() as descriptor:
            decided, terms = self.choose(self.reader.read(descriptor))
            wants = terms is not None
            # The folder's owner could have removed it.
            if not wants and not self.is_in(descriptor):
                self.release()
                self.put(descriptor, model.new_name("wait"), self._text)
                # A worker that this process forks while it waits must not keep the place after our end.
                locks.close_in_children.add(self._file)
        return decided, wants

    def choose(self, snapshot: LeaseSnapshot) -> tuple[Decided, Terms | None]:
        """Note who is ahead: all, while we have no ticket; never those of our job. Then choose."""
        in_front = takewhile(lambda waiter: waiter.name != self.name, snapshot.waiters)
        others = (each for each in in_front if not each.group or (each.uid, each.group) != self._job)
        self.ahead = tuple(each for each in others if not each.is_unresponsive)
        return self._choose(snapshot.holders, self.ahead)
