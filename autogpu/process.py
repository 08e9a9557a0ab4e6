"""Process helpers: clocks, fork-safe locks, and process identity (pid and start time).

autogpu starts to read the driver only after it has imported this module. So the module does not import pathlib,
functools or threading, each of which takes longer to import than the whole module.
"""

from __future__ import annotations

import _thread
import io
import os
import select
import sys
import time

from autogpu.errors import is_interruption, raise_if_from_script

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from typing import Any, Callable, Iterator, Mapping

# The most ancestors that are followed; real processes have fewer. Other jobs wait for the mutex during the search.
_MOST_ABOVE = 64


# Read the kernel's clock: a script may have replaced the clock functions of Python, as freezegun does.
def _clock(name: str, on_windows: Callable[[], float]) -> Callable[[], float]:
    read = getattr(time, "clock_gettime", None)
    which = getattr(time, name, None)
    return on_windows if read is None or which is None else lambda: read(which)


monotonic_s = _clock("CLOCK_MONOTONIC", time.monotonic)
unix_s = _clock("CLOCK_REALTIME", time.time)


def copy_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of the variables. ``dict(environ)`` would raise if another thread changes them meanwhile."""
    values = ((name, environ.get(name)) for name in tuple(environ))
    return {name: value for name, value in values if value is not None}


def is_worker() -> bool:
    """True if Python's ``multiprocessing`` started this process."""
    module: Any = sys.modules.get("multiprocessing.process")
    return module is not None and getattr(module.current_process(), "_parent_pid", None) is not None


def is_readable(descriptor: int, within_s: float) -> bool:
    """Wait until there is data to read or the other end is closed. Return False if neither happens in time."""
    within_s = max(0.0, within_s)
    # poll, not select: a program with many files has descriptors above 1023.
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(within_s * 1000))
    # Eventlet removes select.poll. Its own select.select has no such limit.
    return bool(select.select([descriptor], [], [], within_s)[0])


def call_after_fork(function: Callable[[], None]) -> None:
    """Call ``function`` in every child that this process forks.

    A lock needs this, because a thread that the child does not have may hold it.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


class OncePerProcess:
    """A step that runs once in a process. A child that is forked in the middle of the step runs it again.

    Attributes:
        is_done: True if the step has ended without an exception.
    """

    def __init__(self) -> None:
        self.is_done = False
        self._begun_in: int | None = None

    def run(self, step: Callable[[], None]) -> None:
        """Run ``step``, unless this process has begun it before. An interrupted step may be run again."""
        if self.is_done or self._begun_in == os.getpid():
            return
        self._begun_in = os.getpid()
        try:
            step()
        except BaseException as error:
            if is_interruption(error):
                self._begun_in = None
            raise
        self.is_done = True


def fork_safe_rlock(owner: Any, name: str = "lock") -> threading.RLock:
    """Return a reentrant lock; a forked child gets a new, unlocked one as the attribute ``name`` of ``owner``."""

    def make() -> threading.RLock:
        # threading.RLock is _thread.RLock, unless gevent or eventlet replaced it. These import threading to do so.
        return getattr(sys.modules.get("threading"), "RLock", _thread.RLock)()

    call_after_fork(lambda: setattr(owner, name, make()))
    return make()


def script_file() -> str:
    """Return the resolved file of the running script; ``""`` at a prompt, in a notebook, and for ``-c`` and stdin."""
    argv = [str(each) for each in getattr(sys, "argv", None) or ()]
    # isfile() also returns False for a name that is empty or in a folder that can't be read.
    is_script = bool(argv) and not hasattr(sys, "ps1") and os.path.isfile(argv[0])
    return os.path.realpath(argv[0]) if is_script else ""


def pid_namespace() -> str | None:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError as error:
        raise_if_from_script(error)
        return None


def read_bytes(path: str) -> bytes:
    """Return the contents of a file, even while Python shuts down, when the builtin ``open`` is gone."""
    with io.FileIO(path) as file:
        return file.read()


def start_time(pid: int | None = None) -> int | None:
    """Return when a process (``None``: this one) started, in clock ticks since boot; ``None`` if hidden or ended.

    Use it only to check whether a pid still belongs to the same process. Source: ``/proc/<pid>/stat``, field 22.
    """
    found = parent_and_start(pid)
    return None if found is None else found[1]


def parent_and_start(pid: int | None = None) -> tuple[int, int] | None:
    """Return a process's parent and :func:`start_time` (``None``: this one's); ``None`` if it is hidden or ended."""
    try:
        # "self", not our pid: if /proc still belongs to the parent pid namespace, our pid is another process there.
        text = read_bytes(f"/proc/{'self' if pid is None else pid}/stat")
        # The second field is the program's name in parentheses and may itself hold spaces and parentheses.
        fields = text.rpartition(b")")[2].split()
        # A process that has ended is listed until its parent reads its exit status. A process whose main thread has
        # ended is listed in the same state, but has other threads left (field 20), so it still runs.
        has_ended = fields[0] in (b"Z", b"X") and int(fields[17]) <= 1
        return None if has_ended else (int(fields[1]), int(fields[19]))
    except (OSError, ValueError, IndexError) as error:
        raise_if_from_script(error)
        return None


def with_ancestors(pid: int | None = None) -> Iterator[tuple[int, int]]:
    """Yield (pid, start time) of a process and of its ancestors, nearest first. ``None`` stands for this process.

    Yield nothing if ``/proc`` hides the process. For the unit of the start time see :func:`start_time`.
    """
    pid = os.getpid() if pid is None else pid
    for _ in range(_MOST_ABOVE):
        found = parent_and_start(pid)
        if found is None:
            return
        parent, start = found
        yield pid, start
        if parent <= 1:
            return
        pid = parent


def running() -> Iterator[tuple[int, int, int]]:
    """Yield (pid, parent's pid, start time) of each visible process. For the start time see :func:`start_time`."""
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    except OSError as error:
        raise_if_from_script(error)
        return
    for pid in pids:
        found = parent_and_start(pid)
        if found is not None:
            yield (pid, *found)
