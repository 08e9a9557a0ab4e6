"""Take a reading of the GPUs outside the user's process, while that goes on with something else.

Imports little: a probe is started before the rest of the package is loaded.
"""

from __future__ import annotations

import atexit
import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, Protocol

    from autogpu.devices.model import Inventory

    class Probe(Protocol):
        """A reading under way."""

        def result(self, deadline_s: float) -> Inventory | None:
            """The reading, or ``None`` if it has not come ``deadline_s`` seconds after the probe's start."""

        def close(self) -> None:
            """Nobody wants the reading any more. Leaves no process behind for a script's ``os.wait`` to find."""


# Without persistence mode NVML's start takes seconds.
_PATIENCE_S = 15.0

# A process that has said all it had to say ends within a ms, unless the driver holds it.
_END_DEADLINE_S = 0.2


def start(environ: Mapping[str, str]) -> Probe:
    """Begin a reading of the driver outside this process; this returns within ms, whatever the driver does."""
    if _is_python(sys.executable):
        return _ProcessProbe(environ)
    from autogpu.devices import inside

    return inside.ThreadProbe()


def finish(reading: Probe) -> Inventory:
    """What was read, for somebody who waits for nothing else; a driver that does not answer is one more failure."""
    from autogpu.devices.model import Inventory

    inventory = reading.result(_PATIENCE_S)
    if inventory is None:
        reading.close()
        inventory = Inventory(failure=f"the NVIDIA driver has not answered for {_PATIENCE_S:.0f} s")
    return inventory


def _is_python(executable: str | None) -> bool:
    # A frozen application or an embedder such as uWSGI is its own sys.executable: starting that would start the
    # application once more.
    if not executable or getattr(sys, "frozen", False):
        return False
    return os.path.basename(executable).lower().startswith(("python", "pypy"))


class _ProcessProbe:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self._started_s = time.monotonic()
        self._inventory: Inventory | None = None
        self._pieces: list[bytes] = []
        self._owner_pid = os.getpid()
        self._pipe, writer = os.pipe()
        # -I -S: no site, so neither our hook nor anybody's start-up code runs in it. Imported, and not run as a file:
        # that would be compiled each time.
        program = "import sys; sys.path.append(sys.argv[1]); import nvml; nvml.main()"
        command = [sys.executable, "-I", "-S", "-c", program, os.path.dirname(__file__)]
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
            printed = self._read_out(self._started_s + deadline_s)
            if printed is not None:
                self._inventory = _inventory(printed, self._end())
        return self._inventory

    def close(self) -> None:
        if self._inventory is None and os.getpid() == self._owner_pid:
            self._kill()
            self._inventory = _inventory(b"", self._end())

    def _read_out(self, until_s: float) -> bytes | None:
        # Not until the process's end: one that is stuck in the driver has none.
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        while poll.poll(max(until_s - time.monotonic(), 0) * 1000):
            piece = os.read(self._pipe, 1 << 16)
            if not piece:
                return b"".join(self._pieces)
            self._pieces.append(piece)
        return None

    def _end(self) -> int:
        """Its status as ``waitpid`` gives it; 0 where somebody else, or nobody, has seen its end."""
        atexit.unregister(self._abandon)
        os.close(self._pipe)
        deadline_s = time.monotonic() + _END_DEADLINE_S
        while True:
            status = self._reaped()
            if status is not None:
                return status
            if time.monotonic() > deadline_s:
                # A process stuck inside the driver does not die by SIGKILL until the driver lets go.
                self._kill()
                return 0
            time.sleep(0.0005)

    def _reaped(self) -> int | None:
        """``None`` while it lives."""
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:  # the script has waited for it, or ignores SIGCHLD
            return 0
        return status if pid else None

    def _kill(self) -> None:
        if self._reaped() is None:  # else the pid may be somebody else's by now
            os.kill(self.pid, 9)

    def _abandon(self) -> None:
        if os.getpid() == self._owner_pid:
            self._kill()


def _spawn(command: list[str], environ: Mapping[str, str], stdout: int) -> int:
    """Start a process that has nothing of ours but ``stdout``; its pid."""
    if not hasattr(os, "posix_spawn"):
        return _spawn_on_3_7(command, environ, stdout)
    # Not subprocess: what it imports delays the reading by as long as the reading takes.
    actions = [
        (os.POSIX_SPAWN_DUP2, stdout, 1),  # first: a script may have closed 0 to 2, and the pipe be one of them
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
    ]
    return os.posix_spawn(command[0], command, environ, file_actions=actions)


def _spawn_on_3_7(command: list[str], environ: Mapping[str, str], stdout: int) -> int:
    import subprocess

    nothing = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=nothing, stdout=stdout, stderr=nothing, env=dict(environ))
    process.returncode = 0  # it is waited for by its pid, and not by the object
    return process.pid


def _inventory(written: bytes, status: int) -> Inventory:
    import marshal

    from autogpu.devices.model import Inventory

    try:
        return Inventory.from_reading(marshal.loads(written))
    except (ValueError, KeyError, TypeError, EOFError):
        how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit status {os.WEXITSTATUS(status)}"
        return Inventory(failure=f"the process that reads NVML ended with {how}")
