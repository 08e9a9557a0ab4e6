"""To be woken when something happens in a folder, within a millisecond of a holder's being killed.

The kernel closes the descriptors of a process that is killed, and closing one that may write is an event.
``inotify(7)``.
"""

from __future__ import annotations

import os
import select
import time
from pathlib import Path

from autogpu.lease import locks

_CLOSE_WRITE = 0x8
_MOVED_TO = 0x80
_DELETE = 0x200
_DELETE_SELF = 0x400
_MOVE_SELF = 0x800
_ONLYDIR = 0x01000000
_EVENTS = _CLOSE_WRITE | _MOVED_TO | _DELETE | _DELETE_SELF | _MOVE_SELF | _ONLYDIR

# Without inotify: not on Linux, or the user's instances are all in use (fs.inotify.max_user_instances).
_POLL_S = 1.0


class Watch:
    """Sees changes of one folder from its making on, so that none is lost between looking and waiting."""

    def __init__(self, folder: Path) -> None:
        self._descriptor = _start(folder)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            locks.close(descriptor)

    def wait(self, most_s: float) -> bool:
        """Wait for a change, at most ``most_s``; whether there was one. Ctrl-C gets through at once."""
        if self._descriptor is None:
            time.sleep(max(0.0, min(most_s, _POLL_S)))
            return False
        # poll, not select: a program with many files has descriptors above 1023.
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        if not poll.poll(max(0.0, most_s) * 1000):
            return False
        try:
            while os.read(self._descriptor, 65536):
                pass
        except BlockingIOError:
            pass
        return True


def _start(folder: Path) -> int | None:
    try:
        # Here, since only those who wait need it, and there are Pythons without.
        import ctypes

        library = ctypes.CDLL(None, use_errno=True)
        descriptor = int(library.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
    except (ImportError, OSError, AttributeError, TypeError):
        return None
    if descriptor < 0:
        return None
    locks.close_in_children(descriptor)
    if library.inotify_add_watch(descriptor, os.fsencode(str(folder)), _EVENTS) < 0:
        locks.close(descriptor)
        return None
    return descriptor
