"""A file of the folder that means something only while its lock is held: how it appears, and how it is read.

It becomes visible locked and complete, and is never written again. So a visible one whose lock can be taken is
what a process left that has ended, in whichever way.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from autogpu.lease import locks
from autogpu.lease.folder import Folder
from autogpu.lease.model import Uncoordinated

_MODE = 0o644  # all users must be able to open it to see whether it is locked
_HIDDEN_MODE = 0o600

# Those that tidy up may remove a file between its appearing and its being locked: with eight of them on two cores that
# happened to 1 % of the first attempts, and to 10 % of the second.
_ATTEMPTS = 100

# The names that this process placed, with its pid: a fork's child has the table too, and placed none of them.
_placed: dict[str, int] = {}


class LockedFile:
    """A file of this process in the folder; it lives as long as a process has this open, at most as long as the object.

    Never unlocked, only closed: a fork's child shares the lock, and may be the one that uses the GPU. In a fork's child
    nothing here has an effect on the parent's file.

    Attributes:
        name: In the folder; ``""`` until it was put there.
    """

    def __init__(self, folder: Folder) -> None:
        self.name = ""
        self.folder = folder
        self._pid = os.getpid()
        self._opened: locks.Descriptor | None = None

    def put(self, descriptor: int, name: str, text: bytes) -> None:
        """Make the file; readers find it locked and complete. Where this fails or is interrupted, release it."""
        self.name = name
        for attempt in range(_ATTEMPTS):
            try:
                self._try_put(descriptor, text)
                return
            except FileNotFoundError:  # one who tidies up saw it between our creating and our locking
                self.release()
                if attempt == _ATTEMPTS - 1:
                    raise

    def _try_put(self, folder: int, text: bytes) -> None:
        # No other user can open it before it is locked, nor have made one of that name.
        hidden = f".{self.name.partition('.')[0]}.{os.urandom(8).hex()}"
        try:
            opened = locks.Descriptor(os.open, hidden, locks.CREATE, _HIDDEN_MODE, dir_fd=folder)
            self._opened = opened = locks.above_standard(opened)
            locks.own(opened.number)
            # By another description, as others will ask: a file system may let such a lock pass, and know none.
            with locks.Descriptor(os.open, hidden, locks.LOOK, dir_fd=folder) as another:
                if locks.last_beat(another.number) is None:
                    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
            while text:
                text = text[os.write(opened.number, text) :]
            locks.show_to_all(opened.number, _MODE)
            _placed[self.name] = os.getpid()
            os.rename(hidden, self.name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            locks.unlink(folder, hidden)

    def is_in(self, descriptor: int) -> bool:
        """The others still see it: it may have been removed, or a daemon has closed all its descriptors."""
        opened = self._opened
        return opened is not None and opened.is_ours and locks.is_named(descriptor, self.name, opened.status)

    def beat(self) -> None:
        """Show the others that this process is running; is no event for those who watch the folder."""
        if self._opened is not None and self._opened.is_ours:
            with suppress(OSError):
                locks.beat(self._opened.number)

    def release(self) -> None:
        """Remove the file and let its lock go, now. Has no effect in a fork's child, nor the second time."""
        if self._pid != os.getpid():
            return
        try:
            with self.folder.opened() as descriptor:
                if self.is_in(descriptor):
                    locks.unlink(descriptor, self.name)
        except Uncoordinated:  # the folder has gone, and the file with it
            pass
        finally:
            _placed.pop(self.name, None)
            if self._opened is not None:
                self._opened.close_if_ours()

    def leave_to_programs(self) -> None:
        """Let every program that this process starts from now on keep the lock, also when this one has ended."""
        if self._opened is not None:
            with suppress(OSError):  # it may open no more files, and keeps it alone
                locks.leave_to_programs(self._opened.number)

    def close_in_children(self) -> None:
        """Let no fork's child keep it alive."""
        if self._opened is not None:
            locks.close_in_children.add(self._opened)


def is_mine(name: str) -> bool:
    """This very process made the file of that name."""
    return _placed.get(name) == os.getpid()
