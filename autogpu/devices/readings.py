"""The readings of the GPUs that one process takes, one after the other."""

from __future__ import annotations

from typing import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.devices.model import DeviceReader, Inventory, Reading

# When the context is made a reading is worth waiting for: without persistence mode NVML's start takes seconds.
CONTEXT_DEADLINE_S = 10.0

# For one more try: the machine may have been busy with the import, or this process is a fork of the one that read.
_SECOND_CHANCE_S = 3.0


class Readings:
    """The ``newest`` reading of the GPUs, ``None`` until one came, and the one that is under way."""

    def __init__(self, reader: DeviceReader, environ: Mapping[str, str], first: Reading) -> None:
        """Begin with ``first``, which is under way."""
        self.newest: Inventory | None = None
        self._reader = reader
        self._environ = environ
        self._pending: Reading | None = first
        self._stuck: Reading | None = None

    @property
    def is_pending(self) -> bool:
        """One is under way."""
        return self._pending is not None

    def begin(self) -> None:
        """Start one more."""
        self._pending = self._reader.start_in_process(self._environ, self.newest)

    def prepare(self) -> None:
        """Import beside the framework's import what a reading in this process needs."""
        if self.newest is not None:
            self._reader.prepare(self.newest)

    def wait(self, deadline_s: float) -> Inventory | None:
        """The newest reading, after the one under way has come or its deadline has passed."""
        if self._pending:
            inventory = self._pending.result(deadline_s)
            if inventory is not None:
                self.newest, self._pending = inventory, None
        return self.newest

    def wait_or_replace(self, deadline_s: float) -> Inventory | None:
        """As :meth:`wait`; one that has not come, or is a parent's, has another one take its place."""
        if self.wait(deadline_s) is None:
            self.close()
            self._pending = self._reader.start(self._environ)
            self.wait(_SECOND_CHANCE_S)
        return self.newest

    def take(self) -> Inventory | None:
        """Take one more reading, at once; as long as the driver has not answered the last one, wait for that."""
        if self._stuck is None or not self._stuck.is_running:
            self._stuck = self._reader.start_in_process(self._environ, self.newest)
        return self._stuck.result(CONTEXT_DEADLINE_S)

    def take_outside(self, deadline_s: float) -> Inventory | None:
        """Take one more in a process of its own: an interpreter that is ending may start no thread."""
        reading = self._reader.start(self._environ)
        try:
            return reading.result(deadline_s)
        finally:
            reading.close()

    def close(self) -> None:
        """End the reading that is under way: none is needed any more."""
        if self._pending:
            self._pending.close()
            self._pending = None
