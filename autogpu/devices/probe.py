"""Take readings of the GPUs, one after the other: in a process beside the user's, or in a thread of it.

Imports little: a probe is started before the rest of the package is loaded.
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

# Without persistence mode NVML's start takes seconds; who is about to make a context waits less than a command.
_PATIENCE_S = 15.0
CONTEXT_DEADLINE_S = 10.0

# A process that has printed all that it had to ends within a ms, unless the driver holds it.
_END_DEADLINE_S = 0.2

# For one more try: the machine may have been busy with the import, or this process is a fork of the one that read.
_SECOND_CHANCE_S = 3.0


def start(environ: Mapping[str, str]) -> Reading:
    """Begin a reading outside this process; returns within ms, whatever the driver does."""
    if is_this_python(sys.executable) and not _waits_for_children():
        try:
            return ProcessReading(environ)
        except OSError as error:  # no more processes or files for this user: a thread may still do
            raise_if_from_script(error)
    return ThreadReading()


def start_in_process(environ: Mapping[str, str], last: Inventory | None) -> Reading:
    """Begin a reading in this process, at the moment at which the framework itself calls the driver.

    It takes a tenth of the time of :func:`start`. A driver that has begun to crash since the ``last`` reading takes the
    job along by the framework's own calls as well; one that hangs holds up a thread only. Where the last reading
    failed this one is taken outside, and where this process has no pynvml to use the last one stands.
    """
    if last is not None and sys.is_finalizing():
        return LastReading(last)
    # Their threads are not real: a call that hangs would hold up the script as well.
    is_green = not {"gevent", "eventlet"}.isdisjoint(sys.modules)
    return start(environ) if last is None or last.failure or is_green else ThreadReading(last)


def prepare(last: Inventory) -> None:
    """Import what :func:`start_in_process` will need, so that it need not be waited for when the framework starts."""
    # Beside a framework, which has usually imported subprocess, pynvml takes 7 ms; alone it takes 25, which is too much
    # for a process that may never take a GPU.
    if last.devices and "subprocess" in sys.modules:
        import_pynvml()


def finish(reading: Reading, deadline_s: float = _PATIENCE_S) -> Inventory:
    """Wait for a reading; a driver that does not answer is one more failure."""
    from autogpu.devices.model import FailureCause, Inventory

    inventory = reading.result(deadline_s)
    if inventory is None:
        reading.close()
        inventory = Inventory(failure=f"NVML timed out after {deadline_s:.0f} s", failure_cause=FailureCause.TIMEOUT)
    return inventory


def import_pynvml() -> str:
    """Import pynvml into this process; returns why it can't be used, or ``""``."""
    from autogpu.devices import nvml

    try:
        # In the calling thread: a fork must not find the import half done by another one.
        nvml.load_pynvml()
    except nvml.UnusableBinding as error:
        raise_if_from_script(error)
        return str(error)
    return ""


def is_this_python(executable: str | None) -> bool:
    """Starting ``executable`` starts this Python, and no application once more that is frozen or embeds one."""
    # An embedder, unlike a Python that was started, tells its Python no command line.
    if not executable or getattr(sys, "frozen", False) or not getattr(sys, "orig_argv", True):
        return False
    # As installers, distributions and virtual environments call it: python3, python3.13t.
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
    """A reading in a thread; where there can be none, the last one stands, or a failure that says why.

    Args:
        last: The newest reading so far, of whose GPUs those that did not answer are not asked again and whose topology
            stands; ``None`` for the first reading.
    """

    def __init__(self, last: Inventory | None = None) -> None:
        import threading

        from autogpu.devices.model import FailureCause, Inventory

        problem = import_pynvml()
        self._started_s = monotonic_s()  # with pynvml imported, which takes its own time
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
            problem = f"neither a process nor a thread can be started to read NVML: {error}"
            self._inventory = last or Inventory(failure=problem, failure_cause=FailureCause.DRIVER)

    def _read(self) -> None:
        from autogpu.devices import nvml
        from autogpu.devices.model import Inventory
        from autogpu.frozen import replace

        # One that answered with an error may have recovered, which a job that waits for hours wants to know.
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
        # Not in a fork's child, which has no such thread.
        return self._inventory is None and self._thread.is_alive()

    def close(self) -> None:
        """The thread ends with the reading."""


class ProcessReading:
    """A reading in a process of its own, which does not outlive this one."""

    is_running = False  # another one is begun beside it, at the price of a process

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._started_s = monotonic_s()
        self._inventory: Inventory | None = None
        self._printed = b""
        self._owner_pid = os.getpid()
        self._pipe, writer = os.pipe()
        # -I -S: no site, so neither our hook nor other start-up code runs in it. Imported, and not run as a file:
        # that would be compiled each time.
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
        # A forked child must not read its parent's pipe empty.
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
        # The script may have closed all descriptors, so that the pipe's number is another file's.
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
            # What another thread has forked while the reading was started keeps the other end of the pipe open.
            if not piece or self._printed.endswith(END):
                return self._printed
        return None

    def _end(self, *, is_killed: bool) -> int:
        """Its status as ``waitpid`` gives it; 0 where its end can't be seen from here."""
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
            if is_killed or is_late:  # and never before that: the pid may be another process's by now
                os.kill(self.pid, 9)
            if is_late:  # inside the driver SIGKILL has no effect until that lets go
                return 0
            time.sleep(0.0005)


def _spawn(command: list[str], environ: Mapping[str, str], stdout: int) -> int:
    """Start a process that inherits nothing of ours but ``stdout``; its pid."""
    if not hasattr(os, "posix_spawn"):  # Python 3.7
        import subprocess

        nothing = subprocess.DEVNULL
        child = subprocess.Popen(command, stdin=nothing, stdout=stdout, stderr=nothing, env=copy_of(environ))
        child.returncode = 0  # it is waited for by its pid, and not by the object
        return child.pid
    # Not subprocess: what it imports delays the reading by as long as the reading takes.
    actions = [
        (os.POSIX_SPAWN_DUP2, stdout, 1),  # first: a script may have closed 0 to 2, and the pipe be one of them
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
    ]
    return os.posix_spawn(command[0], command, environ, file_actions=actions)


def _inventory(printed: bytes, status: int) -> Inventory:
    import marshal

    from autogpu.devices.model import FailureCause, Inventory

    try:
        return Inventory.from_reading(marshal.loads(printed))
    except (EOFError, KeyError, TypeError, ValueError) as error:  # it is not whole
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
        """Import beside the framework's import what a reading in this process needs."""
        if self.newest is not None:
            self._reader.prepare(self.newest)

    def wait(self, deadline_s: float) -> Inventory | None:
        """The newest reading, after the one under way has come or its deadline has passed."""
        with self._lock:
            inventory = self._pending.result(deadline_s) if self._pending else None
            if inventory is not None:
                self.newest = inventory
                self._pending = None
            return self.newest

    def wait_or_replace(self, deadline_s: float) -> Inventory | None:
        """As :meth:`wait`; one that has not come, or is a parent's, has another one take its place."""
        with self._lock:
            if self.wait(deadline_s) is None:
                self.close()
                self._pending = self._reader.start(self._environ)
                self.wait(_SECOND_CHANCE_S)
            return self.newest

    def take(self) -> Inventory | None:
        """Take one more reading, at once; as long as the driver has not answered the last one, wait for that."""
        with self._lock:
            if self._further is None or not self._further.is_running:
                self._further = self._reader.start_in_process(self._environ, self._last or self.newest)
            inventory = self._further.result(CONTEXT_DEADLINE_S)
            self._last = inventory or self._last
            return inventory

    def take_outside(self, deadline_s: float) -> Inventory:
        """Take one more in a process of its own: an interpreter that is ending may start no thread."""
        return finish(self._reader.start(self._environ), deadline_s)

    def close(self) -> None:
        """End the reading that is under way: none is needed any more."""
        with self._lock:
            if self._pending:
                self._pending.close()
                self._pending = None
