"""Leases and tickets of this process: files in the lease folder that count as long as it or a fork of it lives."""

from __future__ import annotations

import errno
import os
import time
import weakref
from types import MappingProxyType
from typing import Callable, Mapping, MutableMapping, Sequence, TypeVar

from autogpu.caps import Cap
from autogpu.errors import ignoring
from autogpu.lease import locks, model
from autogpu.lease.folder import Folder
from autogpu.lease.marker import ChildMarker
from autogpu.lease.model import Fault, Holder, LeaseProblem, LeaseUnavailable, Terms, Waiter
from autogpu.lease.snapshot import FolderReader, LeaseSnapshot, own_files
from autogpu.process import monotonic_s

# The caller's decision. This module only passes it on.
Decided = TypeVar("Decided")

# A function of the live holders and the waiters. It returns the decision and the terms to hold, None to hold nothing.
Choose = Callable[[Sequence[Holder], Sequence[Waiter]], "tuple[Decided, Terms | None]"]
ChooseBySnapshot = Callable[[LeaseSnapshot], "tuple[Decided, Terms | None]"]

_MODE = 0o644  # other users open the file to see whether it is locked
_HIDDEN_MODE = 0o600

# If two processes claim without the mutex, the earlier one waits at most this long for the later one to remove
# its lease.
_WITHDRAWN_S = 0.2
_LOOK_AGAIN_S = 0.005

# Under the mutex, a process looks only for new files if its last reading of the folder is younger than this. So a lease
# whose process has ended since counts a little longer. On a busy host with a thousand leases, the steps between two
# readings take some tenths of a second, and a full reading takes as long again.
_FRESH_S = 1.0

# A process gives up after this many attempts to claim. Each attempt takes a few ms.
_MOST_COLLISIONS = 200


# The first finalizer of a process imports atexit, which fails while Python shuts down. So make one now.
weakref.finalize(Folder, lambda: None).detach()


class LockedFile:
    """A lease or ticket of this process: a file in the lease folder.

    The file counts as long as a process has it open. This process closes it, at the latest when the object is deleted.
    The file appears in the folder complete and locked, and is never written again. So a file without a lock is left
    over from a process that has ended.

    The file is never unlocked, only closed: a forked child shares the lock, and may be the process that uses the GPU.
    In a forked child no method changes the parent's file.

    Attributes:
        name: Name of the file in the folder; ``""`` before :meth:`put`.
    """

    def __init__(self, folder: Folder) -> None:
        self.name = ""
        self.folder = folder
        self._pid = os.getpid()
        self._file = locks.Descriptor()
        # Don't close the file when the interpreter ends: the process may still use the GPU. The kernel closes it.
        weakref.finalize(self, self._file.close_if_still_open).atexit = False

    def put(self, descriptor: int, name: str, text: bytes) -> None:
        """Make the file, so that readers find it locked and complete. If this raises, the caller releases it."""
        self.name = name
        # The hidden name is random and the mode private, so no other user can take the name in advance, or open the
        # file before it is locked. If the process is killed here, the hidden file stays until the folder is cleaned.
        hidden = f".{name.partition('.')[0]}.{os.urandom(8).hex()}"
        try:
            with locks.Descriptor(os.open, hidden, locks.CREATE, _HIDDEN_MODE, dir_fd=descriptor) as made:
                self._file.open_above_standard(made)
            locks.own(self._file.number)
            # Check the lock through another open file description, as readers do: some file systems accept such a lock
            # without keeping it.
            with locks.Descriptor(os.open, hidden, locks.LOOK, dir_fd=descriptor) as another:
                if locks.last_beat(another.number) is None:
                    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
            while text:
                text = text[os.write(self._file.number, text) :]
            locks.show_to_all(self._file.number, _MODE)
            own_files[name] = os.getpid()
            os.rename(hidden, name, src_dir_fd=descriptor, dst_dir_fd=descriptor)
        finally:
            locks.unlink(descriptor, hidden)

    def is_in(self, descriptor: int) -> bool:
        """True if others still see the file: it was not removed, and this process has not closed it, as daemons do."""
        return self._file.is_still_open and locks.still_has_name(descriptor, self.name, self._file.status)

    def beat(self) -> None:
        if self._file.is_still_open:
            with ignoring(OSError):
                locks.beat(self._file.number)

    def release(self) -> None:
        """Remove the file and close it. Has no effect in a forked child, or if called again."""
        if self._pid != os.getpid():
            return
        try:
            with self.folder.open() as descriptor:
                if self.is_in(descriptor):
                    locks.unlink(descriptor, self.name)
        except LeaseUnavailable:  # the folder has gone, and the file with it
            pass
        finally:
            own_files.pop(self.name, None)
            self._file.close_if_still_open()


class Lease(LockedFile):
    """The GPUs that this process holds. The kernel gives them back when the process and all its forks have ended.

    The caller makes the object first and claims afterwards. The lease ends when nothing refers to the object any more,
    so Ctrl-C at any line gives the GPU back. A program started by exec does not inherit the lease, unless
    :meth:`leave_to_programs` was called.

    Attributes:
        identity: The fields about this process that leases and tickets share.
        group: Name shared by the members of one job; ``""`` for a job of one process.
        engine_job: The engine's job to which the GPUs were granted; ``""`` if there is none.
        terms: The claims and caps of the lease.
        problem: Why the claim was made without the mutex; ``None`` if it was made under the mutex.
    """

    def __init__(self, folder: Folder, script: str, *, group: str = "", engine_job: str = "") -> None:
        """Keep the name of ``script`` for the lease, but never its folder or arguments."""
        super().__init__(folder)
        # Read /proc now: later, other processes would wait for the mutex meanwhile.
        self.identity = model.identity(script)
        self.group = group
        self.engine_job = engine_job
        self.problem: LeaseProblem | None = None
        self.terms = Terms({})
        self._marker: ChildMarker | None = None

    def write(self, descriptor: int, terms: Terms) -> None:
        """Write a lease with ``terms``. If this raises, the caller has to :meth:`release` it."""
        name = model.new_name("job")
        of_engine = {"engine_job": self.engine_job} if self.engine_job else {}
        text = model.encode_lease({**self.identity, "group": self.group or name, **of_engine}, terms)
        self.terms = terms
        self.put(descriptor, name, text)

    def leave_to_programs(self) -> None:
        self._file.leave_to_programs()

    @property
    def claims(self) -> Mapping[str, int]:
        return self.terms.claims

    def mark_children(self, environ: MutableMapping[str, str], visible: str | None) -> None:
        """Mark processes that are started with ``environ`` as members of this job, until :meth:`release`.

        Args:
            visible: ``CUDA_VISIBLE_DEVICES`` of these processes, as it would be without autogpu. If a child has another
                value, somebody has set it since.
        """
        if self._marker is None or not self._marker.is_in_place():
            self._marker = ChildMarker(environ)
        self._marker.write(self.name, self.identity, visible)

    def release(self) -> None:
        super().release()
        if self._marker is not None and self._pid == os.getpid():
            self._marker.remove()
            self._marker = None


def acquire_lease(
    lease: Lease,
    choose: Callable[[Sequence[Holder], Sequence[Waiter]], Mapping[str, int] | None],
    caps: Mapping[str, Cap] = MappingProxyType({}),
) -> Lease | None:
    """Claim the bytes that ``choose`` returns, keyed by GPU UUID. For the rest see :func:`choose_and_lease`.

    Returns:
        ``lease``, or ``None`` if nothing is claimed.
    """

    def pair(holders: Sequence[Holder], waiters: Sequence[Waiter]) -> tuple[None, Terms | None]:
        claims = choose(holders, waiters)
        return None, None if claims is None else Terms(claims, caps)

    try:
        _, is_held = choose_and_lease(lease, pair)
        return lease if is_held else None
    except BaseException:  # as in choose_and_lease
        lease.release()
        raise


def choose_and_lease(
    lease: Lease, choose: Choose[Decided], look_up: Callable[[Sequence[Holder]], object] = len
) -> tuple[Decided, bool]:
    """Choose and claim in one step that no other process can interrupt.

    Args:
        choose: Called under the mutex, for which other processes wait. So it must only decide, and not read the driver.
            It may be called several times. Its exceptions propagate.
        look_up: Called with the live holders before the mutex is taken, to look up everything that ``choose`` needs.

    Returns:
        The last decision, and True if ``lease`` holds its claims.

    Raises:
        LeaseUnavailable: The folder can't be used, and nothing is claimed.
        ValueError: The claims are not integers of at least 0, keyed by UUID.
    """
    reader = FolderReader()
    try:
        with lease.folder.open() as descriptor:
            # Look up before taking the mutex: other processes wait while this one has it.
            look_up(reader.read(descriptor).holders)
        return try_to_acquire(lease, reader, lambda snapshot: choose(snapshot.holders, snapshot.queue))
    except BaseException:
        # Release now, also at Ctrl-C: a notebook keeps the traceback, which keeps the lease alive.
        lease.release()
        raise


def try_to_acquire(
    lease: Lease, reader: FolderReader, choose: ChooseBySnapshot[Decided], ticket: LockedFile | None = None
) -> tuple[Decided, bool]:
    """Read the leases, choose, write ``lease``, and read again. If two leases conflict, one process chooses again.

    Two processes can choose at the same time if the mutex can't be taken, or if its holder was stopped so long that the
    others went on without it. Each process writes its lease before it reads again, so at least one sees the other's
    lease, and withdraws its own. The caller has to release ``lease`` if this raises.

    Args:
        ticket: Released under the same mutex, so that other processes never see this one both holding and waiting.

    Returns:
        The last decision, and True if ``lease`` holds its claims.
    """
    with lease.folder.locked() as (descriptor, problem):
        lease.problem = problem
        for attempt in range(_MOST_COLLISIONS):
            # Only the first attempt may use an earlier reading, which is faster. It may contain leases of processes
            # that have just ended.
            fresh_s = 0.0 if attempt else _FRESH_S
            before = reader.read(descriptor, remove_stale=True, fresh_s=fresh_s)
            decided, terms = choose(before)
            if terms is None:
                if attempt:
                    return decided, False
                continue
            lease.write(descriptor, terms)
            if _stands(lease, reader, descriptor, choose, before):
                if ticket:
                    ticket.release()
                return decided, True
            lease.release()
            if lease.problem:
                # A random pause ends repeated collisions. It does not use ``random``: the script may have seeded that.
                time.sleep(_LOOK_AGAIN_S * (1 + os.urandom(1)[0] / 16))
    raise LeaseUnavailable(LeaseProblem(Fault.COLLISIONS))


def _stands(
    lease: Lease, reader: FolderReader, descriptor: int, choose: ChooseBySnapshot[Decided], before: LeaseSnapshot
) -> bool:
    """True if no lease that was written meanwhile conflicts with ``lease``."""
    # Only a new lease can conflict.
    new = _new_leases(reader.read(descriptor, fresh_s=_FRESH_S), before)
    until_s = monotonic_s() + _WITHDRAWN_S
    while new != [lease.name]:
        now = reader.read(descriptor)
        others = tuple(holder for holder in now.holders if holder.name != lease.name)
        _, terms = choose(LeaseSnapshot(others, now.waiters))
        if terms == lease.terms:
            return True
        # Holders are sorted by ctime, which the kernel sets and nobody can forge. The earliest new one may wait.
        new = _new_leases(now, before)
        if new[:1] != [lease.name] or monotonic_s() > until_s:
            return False
        time.sleep(_LOOK_AGAIN_S)
    return True


def _new_leases(now: LeaseSnapshot, before: LeaseSnapshot) -> list[str]:
    regarded = {holder.name for holder in before.holders}
    return [holder.name for holder in now.holders if holder.name not in regarded]
