"""Readings of the GPUs, each in a helper process or in a thread of the user's process.

This module imports little, because the first reading starts before the rest of the package is loaded.
"""

from __future__ import annotations

import atexit
import os
import sys
import time

from autogpu import _vendor, process
from autogpu.errors import raise_if_from_script
from autogpu.process import copy_of, monotonic_s

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping

    from autogpu.devices.model import DeviceReader, Inventory, Reading

# Without persistence mode, NVML takes seconds to start. A script that is about to make a context waits less long than
# one of autogpu's commands.
_PATIENCE_S = 15.0
CONTEXT_DEADLINE_S = 10.0

# After its output, the helper process ends within 1 ms, unless it is stuck in the driver.
_END_DEADLINE_S = 0.2

# Deadline of a second reading. The first may be late because the import kept the machine busy, or unusable because this
# process is a fork of the one that started it.
_SECOND_CHANCE_S = 3.0


def start(environ: Mapping[str, str]) -> Reading:
    """Begin a reading in a helper process; in a thread if this process can't or must not start one.

    This call takes milliseconds, whatever the driver does.
    """
    if is_this_python(sys.executable) and not _waits_for_children():
        try:
            return ProcessReading(environ)
        except OSError as error:  # the user's limit on processes or files; a thread may still start
            raise_if_from_script(error)
    return ThreadReading()


def start_in_process(environ: Mapping[str, str], last: Inventory | None) -> Reading:
    """Begin a reading in this process, just before the framework itself calls the driver.

    This takes a tenth of the time of :func:`start`. If the driver has begun to crash since the ``last`` reading, the
    framework's own calls would end the job anyway. If the driver hangs, it blocks only a thread.

    If the last reading failed, the new one runs in a helper process. If this process can't use pynvml, the last reading
    remains in use.
    """
    if last is not None and sys.is_finalizing():
        return LastReading(last)
    # The threads of these two libraries are not real threads: a call that hangs would also block the script.
    is_green = not {"gevent", "eventlet"}.isdisjoint(sys.modules)
    return start(environ) if last is None or last.failure or is_green else ThreadReading(last)


def prepare(last: Inventory) -> None:
    """Import pynvml now, so that :func:`start_in_process` need not wait for the import when the framework starts."""
    # The import of pynvml takes 7 ms if a framework has imported subprocess, as most do. Otherwise it takes 25 ms. That
    # is too long for a process that may never use a GPU.
    if last.devices and "subprocess" in sys.modules:
        import_pynvml()


def finish(reading: Reading, deadline_s: float = _PATIENCE_S) -> Inventory:
    """Wait for a reading. If the driver does not answer in time, return an inventory with that failure."""
    from autogpu.devices.model import FailureCause, Inventory

    inventory = reading.result(deadline_s)
    if inventory is None:
        reading.close()
        inventory = Inventory(failure=f"NVML timed out after {deadline_s:.0f} s", failure_cause=FailureCause.TIMEOUT)
    return inventory


def import_pynvml() -> str:
    """Import pynvml. Return the reason why it can't be used; ``""`` if it can be used."""
    from autogpu.devices import nvml

    try:
        # Import it in the calling thread. If another thread imported it, a fork could copy a half-finished import.
        nvml.load_pynvml()
    except nvml.UnusableBinding as error:
        raise_if_from_script(error)
        return str(error)
    return ""


def is_this_python(executable: str | None) -> bool:
    """True if ``executable`` starts this Python, and not a second copy of an application that contains Python."""
    # In an application that embeds Python, sys.orig_argv is empty.
    if not executable or getattr(sys, "frozen", False) or not getattr(sys, "orig_argv", True):
        return False
    # Names that installers, distributions and virtual environments use: python3, python3.13t.
    if os.path.basename(executable).rstrip("0123456789.td") not in ("python", "pypy"):
        return False
    try:
        return os.path.samefile(executable, "/proc/self/exe")
    except OSError as error:
        raise_if_from_script(error)
        return False


def reaps_children() -> bool:
    """True if the script handles SIGCHLD. Its handler could reap our helper process, or fail at an unknown pid."""
    signal: Any = sys.modules.get("signal")
    return hasattr(signal, "SIGCHLD") and callable(signal.getsignal(signal.SIGCHLD))


def _waits_for_children() -> bool:
    """True if the script has child processes or handles SIGCHLD, so that its ``waitpid(-1)`` could reap our helper."""
    if reaps_children():
        return True
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # reaps no child
    except (AttributeError, ChildProcessError) as error:  # macOS has no such function before Python 3.13
        raise_if_from_script(error)
        return False
    return True


class LastReading:
    """The newest reading, used again while Python shuts down: imports fail then, and a new thread never runs."""

    is_running = False

    def __init__(self, last: Inventory) -> None:
        self._last = last

    def result(self, deadline_s: float) -> Inventory:
        return self._last

    def close(self) -> None:
        """Do nothing: no process or thread is reading."""


class ThreadReading:
    """A reading in a thread. If it can't start, the result is the last reading, or else the failure.

    Args:
        last: The newest reading so far; ``None`` for the first reading. The new reading keeps its topology, and
            does not query the GPUs that did not answer.
    """

    def __init__(self, last: Inventory | None = None) -> None:
        import threading

        from autogpu.devices.model import FailureCause, Inventory

        problem = import_pynvml()
        self._started_s = monotonic_s()  # after the import of pynvml, which is not part of the deadline
        self._inventory: Inventory | None = None
        self._last = last
        self._thread = threading.Thread(target=self._read, name="autogpu-probe", daemon=True)
        if problem:
            self._inventory = last or Inventory(failure=problem, failure_cause=FailureCause.PYNVML)
            return
        try:
            self._thread.start()
        except RuntimeError as error:  # no more threads
            raise_if_from_script(error)
            problem = f"can't start a process or a thread to read NVML: {error}"
            self._inventory = last or Inventory(failure=problem, failure_cause=FailureCause.DRIVER)

    def _read(self) -> None:
        from autogpu.devices import nvml
        from autogpu.devices.model import Inventory
        from autogpu.frozen import replace

        # Query a GPU again that answered with an error: it may recover while a job waits for hours.
        last = self._last
        silent = None if last is None else [lost.index for lost in last.unreadable if lost.reason == nvml.NO_ANSWER]
        inventory = Inventory.from_reading(nvml.read_inventory(silent))
        self._inventory = replace(inventory, topology=last.topology) if last else inventory

    def result(self, deadline_s: float) -> Inventory | None:
        if self._thread.is_alive():
            self._thread.join(max(self._started_s + deadline_s - monotonic_s(), 0))
        return self._inventory

    @property
    def is_running(self) -> bool:
        # False in a forked child, which does not have this thread.
        return self._inventory is None and self._thread.is_alive()

    def close(self) -> None:
        """Do nothing: the thread ends with the reading."""


class ProcessReading:
    """A reading in a helper process, which is killed when this process exits."""

    is_running = False  # the next reading need not wait for this one, because it starts its own process

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._started_s = monotonic_s()
        self._inventory: Inventory | None = None
        self._printed = b""
        self._owner_pid = os.getpid()
        self._pipe, writer = os.pipe()
        # -I -S: without site, neither our hook nor other start-up code runs. Import nvml instead of running its file:
        # Python would compile the file each time.
        program = "import sys; sys.path += sys.argv[1:]; import nvml; nvml.main()"
        folders = [os.path.dirname(os.path.abspath(__file__)), *_vendor.package_folders(sys.path)]
        command = [sys.executable, "-I", "-S", "-c", program, *folders]
        try:
            self.pid = _spawn(command, environ, writer)
        except OSError:
            os.close(self._pipe)
            raise
        finally:
            os.close(writer)
        atexit.register(self._abandon)

    def result(self, deadline_s: float) -> Inventory | None:
        # A forked child must not consume the data in its parent's pipe.
        if self._inventory is None and os.getpid() == self._owner_pid:
            printed = self._read_pipe(self._started_s + deadline_s)
            if printed is not None:
                self._close_pipe()
                self._inventory = _inventory(printed, self._end(is_killed=False))
        return self._inventory

    def close(self) -> None:
        if self._inventory is None and os.getpid() == self._owner_pid:
            self._close_pipe()
            self._inventory = _inventory(b"", self._end(is_killed=True))

    def _abandon(self) -> None:
        # Don't close the pipe: the script may have closed all descriptors, and another file may have its number now.
        if self._inventory is None and os.getpid() == self._owner_pid:
            self._end(is_killed=True)

    def _close_pipe(self) -> None:
        atexit.unregister(self._abandon)
        os.close(self._pipe)

    def _read_pipe(self, until_s: float) -> bytes | None:
        from autogpu.devices.nvml import END

        while process.is_readable(self._pipe, until_s - monotonic_s()):
            piece = os.read(self._pipe, 1 << 16)
            self._printed += piece
            # Look for END too: if another thread forked while this one started the helper process, the forked process
            # may hold the pipe's other end open.
            if not piece or self._printed.endswith(END):
                return self._printed
        return None

    def _end(self, *, is_killed: bool) -> int:
        """Wait for the helper process. Kill it if it is late, or at once if ``is_killed``.

        Return its ``waitpid`` status; 0 if it is not known.
        """
        until_s = monotonic_s() + _END_DEADLINE_S
        while True:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError as error:  # the script has waited for it, or ignores SIGCHLD
                raise_if_from_script(error)
                return 0
            if pid:
                return status
            is_late = monotonic_s() > until_s
            if is_killed or is_late:  # only after waitpid: if the helper was reaped, another process may have its pid
                os.kill(self.pid, 9)
            if is_late:  # SIGKILL has no effect on a process inside the driver
                return 0
            time.sleep(0.0005)


def _spawn(command: list[str], environ: Mapping[str, str], stdout: int) -> int:
    """Start a process that inherits only ``stdout``. Return its pid."""
    if not hasattr(os, "posix_spawn"):  # Python 3.7
        import subprocess

        nothing = subprocess.DEVNULL
        child = subprocess.Popen(command, stdin=nothing, stdout=stdout, stderr=nothing, env=copy_of(environ))
        child.returncode = 0  # we wait for the pid, so this object must not
        return child.pid
    # Not subprocess: to import it takes as long as the reading itself.
    actions = [
        (os.POSIX_SPAWN_DUP2, stdout, 1),  # first: if the script has closed 0 to 2, the pipe may be one of them
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
    ]
    return os.posix_spawn(command[0], command, environ, file_actions=actions)


def _inventory(printed: bytes, status: int) -> Inventory:
    import marshal

    from autogpu.devices.model import FailureCause, Inventory

    try:
        return Inventory.from_reading(marshal.loads(printed))
    except (EOFError, KeyError, TypeError, ValueError) as error:  # the output is not complete
        raise_if_from_script(error)
        how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit status {os.WEXITSTATUS(status)}"
        return Inventory(failure=f"the process that reads NVML ended with {how}", failure_cause=FailureCause.DRIVER)


class Readings:
    """The newest reading of the GPUs, and the reading in progress.

    Two threads can each import a framework and wait for the same reading.

    Attributes:
        newest: ``None`` until the first reading has ended.
    """

    def __init__(self, reader: DeviceReader, environ: Mapping[str, str], first: Reading) -> None:
        self._lock = process.fork_safe_rlock(self, "_lock")
        self.newest: Inventory | None = None
        self._reader = reader
        self._environ = environ
        self._pending: Reading | None = first
        self._further: Reading | None = None
        self._last: Inventory | None = None

    @property
    def is_pending(self) -> bool:
        return self._pending is not None

    def begin(self) -> None:
        with self._lock:
            self._pending = self._reader.start_in_process(self._environ, self.newest)

    def prepare(self) -> None:
        if self.newest is not None:
            self._reader.prepare(self.newest)

    def wait(self, deadline_s: float) -> Inventory | None:
        """Wait for the reading in progress until its deadline. Return the newest reading."""
        with self._lock:
            inventory = self._pending.result(deadline_s) if self._pending else None
            if inventory is not None:
                self.newest = inventory
                self._pending = None
            return self.newest

    def wait_or_replace(self, deadline_s: float) -> Inventory | None:
        """Wait as :meth:`wait` does. If there is no reading yet, start another one in place of the one in progress.

        In a forked child this happens at once, because the child can't use its parent's reading.
        """
        with self._lock:
            if self.wait(deadline_s) is None:
                self.close()
                self._pending = self._reader.start(self._environ)
                self.wait(_SECOND_CHANCE_S)
            return self.newest

    def take(self) -> Inventory | None:
        """Take another reading and return it; ``None`` if it is late. If the last one still runs, wait for that one."""
        with self._lock:
            if self._further is None or not self._further.is_running:
                self._further = self._reader.start_in_process(self._environ, self._last or self.newest)
            inventory = self._further.result(CONTEXT_DEADLINE_S)
            self._last = inventory or self._last
            return inventory

    def take_outside(self, deadline_s: float) -> Inventory:
        """Take a reading in a helper process, because an interpreter that is shutting down can't start threads."""
        return finish(self._reader.start(self._environ), deadline_s)

    def close(self) -> None:
        with self._lock:
            if self._pending:
                self._pending.close()
                self._pending = None
