"""A file of the folder that means something only while its lock is held: how it appears, and how it is read.

It becomes visible locked and complete, and is never written again. So a visible one whose lock can be taken is
what a process left that has ended, in whichever way.
"""

from __future__ import annotations

import errno
import os

from autogpu.frozen import frozen
from autogpu.lease import locks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

MAX_TEXT_BYTES = 64 * 1024

_MODE = 0o644  # all users must be able to open it to see whether it is locked
_HIDDEN_MODE = 0o600

# Those that tidy up may remove a file between its appearing and its being locked: with eight of them on two cores that
# happened to 1 % of the first attempts, and to 10 % of the second.
_ATTEMPTS = 100

# Gone, a link, no plain file, or closed to us.
_NOT_OURS = (errno.ENOENT, errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENXIO, errno.ENODEV, errno.ENOTDIR)

_READ_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_CREATE_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)

# The names that this process placed, with its pid: a fork's child has the table too, and placed none of them.
_placed: dict[str, int] = {}


@frozen
class LockedFileView:
    """A live file as it was read.

    Attributes:
        status: Of the file.
        text: ``None`` if it is too long to be one of ours, or was not asked for.
    """

    name: str
    status: os.stat_result
    is_mine: bool
    text: bytes | None


class LockedFile:
    """A file of this process in the folder. The descriptor stays open, so that it lives as long as the process.

    Never unlocked, only closed: a fork's child shares the lock, and may be the one that uses the GPU.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        # Two while one replaces the other, so that Ctrl-C between any two lines loses neither.
        self._opened: list[_Open] = []

    def put(self, folder: int, text: bytes) -> None:
        """Make the file say ``text``. At every instant readers find the old or the new, locked and complete.

        Raises:
            OSError: The system does not let us, or it was removed each time while it was written. If there
                was a file already, it still stands.
        """
        for attempt in range(_ATTEMPTS):
            try:
                self._try_put(folder, text)
                return
            except FileNotFoundError:  # one who tidies up saw it between our creating and our locking
                if attempt == _ATTEMPTS - 1:
                    raise

    def _try_put(self, folder: int, text: bytes) -> None:
        # No other user can open it before it is locked, nor have made one of that name.
        hidden = f".{self.name.partition('.')[0]}.{os.urandom(8).hex()}"
        descriptor = locks.above_standard(os.open(hidden, _CREATE_FLAGS, _HIDDEN_MODE, dir_fd=folder))
        try:
            self._opened.append(_Open(descriptor))
            locks.own(descriptor)
            _write(descriptor, text)
            locks.show_to_all(descriptor, _MODE)
            _placed[self.name] = os.getpid()
            os.rename(hidden, self.name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            # What the name means now decides, not how we came here: Ctrl-C can strike just after the rename.
            for opened in list(self._opened):
                if not _is_named(folder, self.name, opened.descriptor):
                    opened.close()
                    self._opened.remove(opened)
            _unlink(folder, hidden)

    def is_alive(self, folder: int) -> bool:
        """Whether others still see it: it may have been removed, or a daemon has closed all its descriptors."""
        return any(opened.is_ours and _is_named(folder, self.name, opened.descriptor) for opened in self._opened)

    def touch(self) -> None:
        """Set the modification time to now; is no event for those who watch the folder."""
        for opened in self._opened:
            if opened.is_ours:
                try:
                    os.utime(opened.descriptor)
                except OSError:  # read-only since; what is done next will say so
                    pass

    def withdraw(self, folder: int | None) -> None:
        """Remove the file, let its lock go; neither need be there still. ``None``: the folder has gone."""
        if folder is not None and self.is_alive(folder):
            _unlink(folder, self.name)
        _placed.pop(self.name, None)
        while self._opened:
            self._opened[-1].close()
            self._opened.pop()

    def leave_to_programs(self) -> None:
        """Let programs that are started from now on keep the lock."""
        for opened in self._opened:
            locks.leave_to_programs(opened.descriptor)

    def close_in_children(self) -> None:
        """Let no fork's child keep it alive."""
        for opened in self._opened:
            locks.close_in_children(opened.descriptor)


class _Open:
    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        try:
            self._status = os.fstat(descriptor)
        except BaseException:
            locks.close(descriptor)
            raise

    @property
    def is_ours(self) -> bool:
        # A daemon closes all descriptors when it starts, and the number may be another file's since.
        try:
            return locks.is_same_file(os.fstat(self.descriptor), self._status)
        except OSError as error:
            return error.errno != errno.EBADF  # a file server that is away says nothing of whose the number is

    def close(self) -> None:
        if self.is_ours:
            locks.close(self.descriptor)
        else:
            locks.forget(self.descriptor)


def view(
    folder: int,
    name: str,
    *,
    remove_stale: bool = False,
    max_bytes_of: Callable[[os.stat_result], int] = lambda status: MAX_TEXT_BYTES,
) -> LockedFileView | None:
    """The live file of that name, or ``None`` for one that is stale, gone, no plain file, or not ours to open.

    Args:
        remove_stale: Remove a stale one, where the system permits.
        max_bytes_of: How long a text is read at most; 0 for not at all.

    Raises:
        OSError: The system can't tell, such as where too many files are open.
    """
    try:
        descriptor = os.open(name, _READ_FLAGS, dir_fd=folder)
    except OSError as error:
        if error.errno in _NOT_OURS:
            return None
        raise  # no more files, no memory: that says nothing of who is alive
    try:
        status = os.fstat(descriptor)
        if not locks.is_regular(status):
            return None
        if locks.is_owned(descriptor):
            text = _read_text(descriptor, min(max_bytes_of(status), MAX_TEXT_BYTES))
            return LockedFileView(name, status, _placed.get(name) == os.getpid(), text)
        if remove_stale:
            _unlink(folder, name)  # if the system permits: in a sticky folder it may be another's
        return None
    finally:
        locks.close(descriptor)


def _write(descriptor: int, text: bytes) -> None:
    while text:
        text = text[os.write(descriptor, text) :]


def _read_text(descriptor: int, max_bytes: int) -> bytes | None:
    if max_bytes <= 0:
        return None
    parts: list[bytes] = []
    size = 0
    while size <= max_bytes:
        part = os.read(descriptor, max_bytes + 1 - size)
        if not part:
            return b"".join(parts)
        parts.append(part)
        size += len(part)
    return None


def _is_named(folder: int, name: str, descriptor: int) -> bool:
    try:
        return locks.is_same_file(os.stat(name, dir_fd=folder, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False
    except OSError:  # a folder that is closed to us for a while is no reason to let a lease go
        return True


def _unlink(folder: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:
        pass
