"""Take a reading of the GPUs outside the user's process, while that process goes on with something else.

Imports little: a probe is started before the rest of the package is loaded.
"""

from __future__ import annotations

import atexit
import os
import selectors
import subprocess
import sys
import threading
import time
from importlib.machinery import PathFinder

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


def start(environ: Mapping[str, str]) -> Probe:
    """Begin a reading of the driver; at most tens of ms pass before this returns, whatever the driver does."""
    if _is_python(sys.executable):
        return _ProcessProbe(environ)
    return _ThreadProbe()


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
        # -I -S: no site, so neither our hook nor anybody's start-up code runs in it.
        program = os.path.join(os.path.dirname(__file__), "nvml.py")
        command = [sys.executable, "-I", "-S", program, *_folder_of_pynvml()]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(environ),
        )
        atexit.register(self._abandon)

    def result(self, deadline_s: float) -> Inventory | None:
        # A forked child must not read its parent's pipe empty.
        if self._inventory is None and os.getpid() == self._owner_pid:
            printed = self._print_out(self._started_s + deadline_s)
            if printed is not None:
                self._inventory = _inventory(printed, self._end())
        return self._inventory

    def close(self) -> None:
        if self._inventory is None and os.getpid() == self._owner_pid:
            self._process.kill()
            self._inventory = _inventory(b"", self._end())

    def _print_out(self, until_s: float) -> bytes | None:
        # Not communicate: it waits for the process's end as well, and one that is stuck in the driver has none.
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while selector.select(max(until_s - time.monotonic(), 0)):
                piece = os.read(pipe, 1 << 16)
                if not piece:
                    return b"".join(self._pieces)
                self._pieces.append(piece)
        return None

    def _end(self) -> int:
        atexit.unregister(self._abandon)
        try:
            status = self._process.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            status = 0
        self._abandon()
        return status

    def _abandon(self) -> None:
        if os.getpid() != self._owner_pid:
            return
        # A process stuck inside the driver does not die by SIGKILL until the driver lets go: never wait for it.
        self._process.kill()
        if self._process.stdout:
            self._process.stdout.close()
        if self._process.poll() is None:
            self._process.returncode = -9


class _ThreadProbe:
    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self._inventory: Inventory | None = None
        self._thread = threading.Thread(target=self._read, name="autogpu-probe", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        from autogpu.devices import nvml
        from autogpu.devices.model import Inventory

        self._inventory = Inventory.from_reading(nvml.read())

    def close(self) -> None:
        pass  # the thread ends with the reading

    def result(self, deadline_s: float) -> Inventory | None:
        self._thread.join(max(self._started_s + deadline_s - time.monotonic(), 0))
        return self._inventory


def _folder_of_pynvml() -> list[str]:
    spec = PathFinder.find_spec("pynvml")
    if spec is None or spec.origin is None:
        return []
    folder, name = os.path.split(spec.origin)
    return [os.path.dirname(folder) if name == "__init__.py" else folder]


def _inventory(printed: bytes, exit_status: int) -> Inventory:
    import json

    from autogpu.devices.model import Inventory

    try:
        return Inventory.from_reading(json.loads(printed.decode()))
    except (ValueError, KeyError, TypeError):
        how = f"signal {-exit_status}" if exit_status < 0 else f"exit status {exit_status}"
        return Inventory(failure=f"the process that reads NVML ended with {how}")
