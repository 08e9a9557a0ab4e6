"""The queue for a GPU: first come, first served; waiters that have ended or are stopped are passed over."""

from __future__ import annotations

import os
import time

from autogpu.errors import WaitTimeout
from autogpu.frozen import replace
from autogpu.lease import mutex, record
from autogpu.lease.folder import Folder
from autogpu.lease.inotify import Watch
from autogpu.lease.leases import write_lease
from autogpu.lease.locked_file import LockedFile
from autogpu.lease.model import SILENCE_S, Demand, QueueState, Uncoordinated, Waiter
from autogpu.lease.snapshot import read_snapshot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Sequence

    from autogpu.lease.leases import Choose, Lease

# Foreign processes that free a GPU change nothing in the folder.
HEARTBEAT_S = 2.0

# A killed holder's file is closed an instant before its lock is dropped, and the driver frees its memory some
# time after that, so the first look can come too early.
_SECOND_LOOKS_S = (0.01, 0.1, 0.5)

# A process that makes events without end must not make us spin.
_SHORTEST_PAUSE_S = 0.002

# Those behind let the head look first: with all of them under the mutex at once the GPU would idle longer.
_BEHIND_PAUSE_S = 0.01

# So that a waiter that becomes unresponsive counts as such when we look.
_GRACE_S = 0.02

_LAST_PLACE = 10**10 - 1


class _Ticket:
    """The place of this process in the queue; vanishes with it."""

    def __init__(self, folder: Folder, demand: Demand, script: str) -> None:
        self.place: int | None = None
        self._folder = folder
        self._demand = demand
        self._script = script
        self._since_s = time.time()
        self._pid = os.getpid()
        self._file: LockedFile | None = None

    def take(self, descriptor: int, others: Sequence[Waiter]) -> None:
        """Take the last place; for the holder of the mutex."""
        self.give_up(descriptor)
        # A ticket with the last possible place shares it with all that come later.
        self.place = min(max([0] + [other.place for other in others]) + 1, _LAST_PLACE)
        self._file = LockedFile(f"wait.{self.place:010d}.{os.geteuid()}.{self._pid}")
        fields = {**record.identity(self._script), "t": round(self._since_s, 6)}
        fields.update(count=self._demand.count, bytes=self._demand.bytes_per_gpu, uuids=list(self._demand.uuids))
        text = record.encode(fields)
        # A demand that the others refuse to read would be passed over for ever, with nothing to show why.
        record.ticket_fields(text)
        try:
            self._file.put(descriptor, text)
        except OSError as error:
            raise self._folder.uncoordinated("does not take a ticket", error) from error
        # A worker that this process forks while it waits must not keep the place after our end.
        self._file.close_in_children()

    def ahead_of(self, waiters: Sequence[Waiter]) -> tuple[Waiter, ...]:
        """Those of ``waiters`` that come before us: all, while we have no ticket."""
        if self._file is None or self.place is None:
            return tuple(waiters)
        mine = (self.place, self._file.name)
        return tuple(waiter for waiter in waiters if (waiter.place, waiter.name) < mine)

    def is_standing(self, descriptor: int) -> bool:
        """Whether the others see our ticket; the folder's owner could have removed it."""
        return self._file is not None and self._file.is_alive(descriptor)

    def heartbeat(self) -> None:
        """Show the others that this process is running; a waiter without a heartbeat is passed over."""
        if self._file is not None:
            self._file.touch()

    def give_up(self, descriptor: int | None) -> None:
        """Leave the queue."""
        if self._file is not None and self._pid == os.getpid():
            self._file.withdraw(descriptor)
            self._file = None


def wait_for_lease(
    folder: Folder,
    choose: Choose,
    *,
    demand: Demand,
    script: str,
    timeout_s: float,
    on_wait: Callable[[QueueState], None] | None = None,
    before_look: Callable[[], None] | None = None,
    group: str | None = None,
    deadline_s: float = mutex.DEADLINE_S,
) -> Lease:
    """Claim as soon as ``choose`` agrees, and wait in the queue until then; Ctrl-C ends it at once.

    Args:
        folder: The host's.
        choose: As for :func:`autogpu.lease.acquire_lease`, but the waiters it is given are only those ahead of this
            process, and it should leave to them the GPUs that they could use (:meth:`Demand.could_use`).
        demand: What the others are told, so that they leave it to this process.
        script: As for :func:`autogpu.lease.acquire_lease`.
        timeout_s: How long to wait in all; 0 looks once.
        on_wait: Is called after each look without a result: the first time at once, then at least every two
            seconds and often in between. What it raises ends the wait and comes through.
        before_look: Is called before looks at which this process could be served, while others can choose:
            the place to read the driver. The readings are at most two seconds old when ``choose`` uses them.
            One that takes more than five seconds gets this process passed over.
        group: As for :func:`autogpu.lease.acquire_lease`.
        deadline_s: As for :func:`autogpu.lease.acquire_lease`.

    Raises:
        WaitTimeout: The time is over.
        Uncoordinated: As for :func:`autogpu.lease.acquire_lease`.
        ValueError: As for :func:`autogpu.lease.acquire_lease`, or ``demand`` is impossible.
    """
    begin = time.monotonic()
    read_at = begin
    is_head = True
    second_looks: list[float] = []
    lease = None
    ticket = _Ticket(folder, demand, script)
    try:
        with Watch(folder.path) as watch:
            while True:
                # Forty waiters must not read the driver forty times at each change: those behind do it with
                # the heartbeat only, and again when they find themselves at the head.
                is_fresh = is_head or time.monotonic() - read_at >= HEARTBEAT_S
                if before_look and is_fresh:
                    before_look()
                    read_at = time.monotonic()
                ticket.heartbeat()
                lease, state, pause_s = _look(folder, choose, ticket, script, group, deadline_s)
                if lease is not None:
                    return lease
                waited_s = time.monotonic() - begin
                state = replace(state, waited_s=waited_s, timeout_s=timeout_s)
                is_head = not state.ahead
                if before_look and is_head and not is_fresh:
                    continue
                if on_wait:
                    on_wait(state)
                if waited_s >= timeout_s:
                    raise WaitTimeout(
                        f"no GPU came free in {timeout_s:g} s; {len(state.ahead)} ahead in the queue",
                        remedy="to wait longer, set select.wait; `autogpu status` lists the holders",
                    )
                if second_looks:
                    pause_s = min(pause_s, second_looks.pop(0))
                if watch.wait(min(pause_s, timeout_s - waited_s)):
                    second_looks = list(_SECOND_LOOKS_S)
                    time.sleep(_SHORTEST_PAUSE_S if is_head else _BEHIND_PAUSE_S)
    except BaseException:  # as in acquire_lease
        if lease:
            lease.release()
        raise
    finally:
        try:
            with folder.opened() as descriptor:
                ticket.give_up(descriptor)
        except Uncoordinated:  # the folder has gone, and the ticket with it
            pass
        finally:
            ticket.give_up(None)


def _look(
    folder: Folder, choose: Choose, ticket: _Ticket, script: str, group: str | None, deadline_s: float
) -> tuple[Lease | None, QueueState, float]:
    """Claim or take a place in the queue, in one step; also how long to wait before the next look, at most."""
    lease = None
    identity = record.identity(script)
    try:
        with mutex.held(folder, deadline_s) as descriptor:
            snapshot = read_snapshot(folder, descriptor, remove_stale=True)
            ahead = ticket.ahead_of(snapshot.queue)
            chosen = choose(snapshot.holders, ahead)
            if chosen is not None:
                lease = write_lease(folder, descriptor, chosen, identity, group)
                # Under the same mutex: others must not see us holding and waiting.
                ticket.give_up(descriptor)
            elif not ticket.is_standing(descriptor):
                ticket.take(descriptor, snapshot.waiters)
        silent_in_s = [SILENCE_S - waiter.silent_s for waiter in ahead]
        state = QueueState(len(ahead) + 1, ahead, snapshot.holders, 0.0, 0.0)
        return lease, state, min([HEARTBEAT_S] + silent_in_s) + _GRACE_S
    except BaseException:  # as in acquire_lease
        if lease:
            lease.release()
        raise
