"""The files of a process in the folder, for as long as it or a fork of it lives: a GPU taken, a place in the queue."""

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

# What a caller decided, which only the caller understands.
Decided = TypeVar("Decided")

# Given the live holders and those who wait: the decision, and what to hold by it; None to hold nothing.
Choose = Callable[[Sequence[Holder], Sequence[Waiter]], "tuple[Decided, Terms | None]"]
ChooseBySnapshot = Callable[[LeaseSnapshot], "tuple[Decided, Terms | None]"]

_MODE = 0o644  # all users must be able to open it to see whether it is locked
_HIDDEN_MODE = 0o600

# Without the mutex: how long the earlier of two claimants waits for the later one to remove its lease.
_WITHDRAWN_S = 0.2
_LOOK_AGAIN_S = 0.005

# How long what was read before the mutex came is good enough under it.
_FRESH_S = 0.1

# In a row; each costs a few ms.
_MOST_COLLISIONS = 200


# The first finalizer of a process imports atexit, which fails while Python shuts down. So make one now.
weakref.finalize(Folder, lambda: None).detach()


class LockedFile:
    """A file of this process in the folder; it lives as long as a process has this open, at most as long as the object.

    It becomes visible locked and complete, and is never written again. So a visible one whose lock can be taken is what
    a process left that has ended, in whichever way.

    Never unlocked, only closed: a fork's child shares the lock, and may be the one that uses the GPU. In a fork's child
    nothing here has an effect on the parent's file.

    Attributes:
        name: In the folder; ``""`` until it was put there.
    """

    def __init__(self, folder: Folder) -> None:
        self.name = ""
        self.folder = folder
        self._pid = os.getpid()
        self._file = locks.Descriptor()
        # An interpreter that ends leaves it to the kernel: the lease lasts as long as the process may use the GPU.
        weakref.finalize(self, self._file.close_if_still_open).atexit = False

    def put(self, descriptor: int, name: str, text: bytes) -> None:
        """Make the file; readers find it locked and complete. Where this fails or is interrupted, release it."""
        self.name = name
        # No other user can open it before it is locked, nor have made one of that name. One that a process leaves which
        # is killed just then stays until the folder is cleaned.
        hidden = f".{name.partition('.')[0]}.{os.urandom(8).hex()}"
        try:
            with locks.Descriptor(os.open, hidden, locks.CREATE, _HIDDEN_MODE, dir_fd=descriptor) as made:
                self._file.open_above_standard(made)
            locks.own(self._file.number)
            # By another description, as others will ask: a file system may let such a lock pass, and know none.
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
        """The others still see it: it may have been removed, or a daemon has closed all its descriptors."""
        return self._file.is_still_open and locks.still_has_name(descriptor, self.name, self._file.status)

    def beat(self) -> None:
        """Show the others that this process is running."""
        if self._file.is_still_open:
            with ignoring(OSError):
                locks.beat(self._file.number)

    def release(self) -> None:
        """Remove the file and let its lock go, now. Has no effect in a fork's child, nor the second time."""
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

    The caller makes the object first and fills it afterwards, so that Ctrl-C at any line still gives the GPU back: the
    lease ends when nothing refers to the object any more. A program started by exec does not inherit it, unless
    :meth:`leave_to_programs` was called.

    Attributes:
        identity: The fields of this process that every file of it has.
        group: Shared by the members of one job; ``""`` for a job of one process.
        engine_job: The engine's job to which the GPUs were granted; ``""`` if there is none.
        terms: What it holds.
        problem: Why it was claimed without the host's mutex; ``None`` where it was not.
    """

    def __init__(self, folder: Folder, script: str, *, group: str = "", engine_job: str = "") -> None:
        """Hold nothing yet.

        Args:
            script: The running script; only its name is kept, never its folder or arguments.
        """
        super().__init__(folder)
        # Looks into /proc; others don't have to wait for that.
        self.identity = model.identity(script)
        self.group = group
        self.engine_job = engine_job
        self.problem: LeaseProblem | None = None
        self.terms = Terms({})
        self._marker: ChildMarker | None = None

    def write(self, descriptor: int, terms: Terms) -> None:
        """Hold ``terms``, unless a reader would refuse them; :meth:`release` the lease if this fails."""
        name = model.new_name("job")
        of_engine = {"engine_job": self.engine_job} if self.engine_job else {}
        text = model.encode_lease({**self.identity, "group": self.group or name, **of_engine}, terms)
        self.terms = terms
        self.put(descriptor, name, text)

    def leave_to_programs(self) -> None:
        """Let every program that this process starts from now on keep the lease, also when this process has ended."""
        self._file.leave_to_programs()

    @property
    def claims(self) -> Mapping[str, int]:
        return self.terms.claims

    def mark_children(self, environ: MutableMapping[str, str], visible: str | None) -> None:
        """Let the processes that are started with ``environ`` know that they are members, until :meth:`release`.

        Args:
            visible: Their ``CUDA_VISIBLE_DEVICES``, as it would be without autogpu. A child that finds another value is
                no member.
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
    """Claim the bytes that ``choose`` returns, keyed by GPU UUID, under these caps; see :func:`choose_and_lease`.

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
    """Choose and claim in one step that no other process can come between.

    Args:
        look_up: Is given the live holders before the others have to wait, to look up what ``choose`` will need.
        choose: All others wait meanwhile, so it only decides: readings of the driver are taken before. It may be called
            several times. What it raises comes through.

    Returns:
        The decision that counts, and whether ``lease`` holds what it claims.

    Raises:
        LeaseUnavailable: The folder does not let us: nothing is claimed.
        ValueError: ``choose`` returned something else than whole numbers, of at least 0, by UUID.
    """
    reader = FolderReader()
    try:
        with lease.folder.open() as descriptor:
            # Before the mutex is taken, under which others would wait for it.
            look_up(reader.read(descriptor).holders)
        return try_to_acquire(lease, reader, lambda snapshot: choose(snapshot.holders, snapshot.queue))
    except BaseException:
        # Ctrl-C: now, not when the traceback goes, which a notebook keeps.
        lease.release()
        raise


def try_to_acquire(
    lease: Lease, reader: FolderReader, choose: ChooseBySnapshot[Decided], ticket: LockedFile | None = None
) -> tuple[Decided, bool]:
    """Read the leases, choose, write ``lease``, and read again: of two that collide one withdraws, and chooses anew.

    So a promise holds also if the mutex can't be had, and if its holder was stopped so long that the others went on
    without it: both have written before they read again, so that at least one sees the other. The caller releases
    ``lease`` if this raises.

    Args:
        ticket: Is given up under the same mutex: others must not see this process holding and waiting.

    Returns:
        The decision, and whether ``lease`` holds what it claims.
    """
    with lease.folder.locked() as (descriptor, problem):
        lease.problem = problem
        for attempt in range(_MOST_COLLISIONS):
            # A process that has just ended may count as alive at first, which is faster; the second look is exact.
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
                # Else two may do the same at the same time for ever. Not by ``random``: the script may have seeded it.
                time.sleep(_LOOK_AGAIN_S * (1 + os.urandom(1)[0] / 16))
    raise LeaseUnavailable(LeaseProblem(Fault.COLLISIONS))


def _stands(
    lease: Lease, reader: FolderReader, descriptor: int, choose: ChooseBySnapshot[Decided], before: LeaseSnapshot
) -> bool:
    """True if no lease that was written meanwhile conflicts with ``lease``."""
    regarded = {holder.name for holder in before.holders}
    # Only what is new has to be looked at for that.
    new = [holder.name for holder in reader.read(descriptor, fresh_s=_FRESH_S).holders if holder.name not in regarded]
    until_s = monotonic_s() + _WITHDRAWN_S
    while new != [lease.name]:
        now = reader.read(descriptor)
        others = tuple(holder for holder in now.holders if holder.name != lease.name)
        _, terms = choose(LeaseSnapshot(others, now.waiters))
        if terms == lease.terms:
            return True
        # Holders are sorted by the time that the kernel keeps, which nobody can forge.
        new = [holder.name for holder in now.holders if holder.name not in regarded]
        if new[:1] != [lease.name] or monotonic_s() > until_s:
            return False
        time.sleep(_LOOK_AGAIN_S)
    return True
