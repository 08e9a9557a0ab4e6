"""To be woken when something happens in a folder, within a millisecond of a holder's being killed.

The kernel closes the descriptors of a process that is killed, and closing one that may write is an event.
``inotify(7)``.
"""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

from autogpu import process
from autogpu.lease import locks
from autogpu.process import monotonic_s

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


class Watch:
    """Sees leases come and go in one folder from its making on, so that none is lost between looking and waiting."""

    def __init__(self, folder: Path) -> None:
        """Begin."""
        self._folder = folder
        self._opened = _start(folder)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def wait(self, most_s: float) -> bool:
        """Wait for a change, at most ``most_s``; tell if one was seen. Ctrl-C gets through at once."""
        if self._opened is None:
            # Others of the user's jobs have all the instances that fs.inotify.max_user_instances allows, or had them.
            self._opened = _start(self._folder)
            time.sleep(max(0.0, most_s))
            return False
        until_s = monotonic_s() + most_s
        while self._opened is not None and process.is_readable(self._opened.number, until_s - monotonic_s()):
            try:
                if self._matters(os.read(self._opened.number, 65536)):
                    return True
            except BlockingIOError:
                pass
            except OSError:  # begin anew, as for another folder
                self.__exit__()
        return False

    def _matters(self, events: bytes) -> bool:
        begin = 0
        while begin < len(events):
            _, mask, _, length = _EVENT.unpack_from(events, begin)
            begin += _EVENT.size + length
            if mask & _FOLDER_LOST:  # there may be another one of that name by now
                self.__exit__()
            # A lease, or one who leaves the queue. Without a name it is the folder itself, or that events were lost.
            kinds = (b"job.", b"wait.") if mask & _DELETE else (b"job.",)
            if not length or events.startswith(kinds, begin - length):
                return True
        return False


def _start(folder: Path) -> locks.Descriptor | None:
    try:
        # Here, since only those who wait need it, and there are Pythons without.
        import ctypes

        library = ctypes.CDLL(None, use_errno=True)
        opened = locks.Descriptor(library.inotify_init1, os.O_CLOEXEC | os.O_NONBLOCK)
    except (ImportError, OSError, AttributeError, TypeError):
        return None
    locks.close_in_children.add(opened)
    if library.inotify_add_watch(opened.number, os.fsencode(str(folder)), _EVENTS) < 0:
        opened.close()
        return None
    return opened
