"""Take a reading of the GPUs inside the user's process, in a thread."""

from __future__ import annotations

import threading
import time

from autogpu.devices import nvml, probe
from autogpu.devices.model import Inventory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping


def again(environ: Mapping[str, str], last: Inventory | None) -> probe.Probe:
    """Begin a reading at the moment at which the framework itself calls the driver.

    Where the ``last`` reading came, this one is taken in this process, in a tenth of the time: a driver that has begun
    to crash since takes the job along by the framework's own calls as well. One that hangs holds up a thread only.
    """
    if last is None or last.failure:
        return probe.start(environ)
    return ThreadProbe({lost.index: lost.reason for lost in last.unreadable})


class ThreadProbe:
    """A reading under way, of all GPUs but those in ``known_unreadable``; see :func:`autogpu.devices.nvml.read`."""

    def __init__(self, known_unreadable: Mapping[int, str] | None = None) -> None:
        self._started_s = time.monotonic()
        self._inventory: Inventory | None = None
        self._known_unreadable = known_unreadable
        self._thread = threading.Thread(target=self._read, name="autogpu-probe", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        self._inventory = Inventory.from_reading(nvml.read(self._known_unreadable))

    def result(self, deadline_s: float) -> Inventory | None:
        """The reading, or ``None`` if it has not come ``deadline_s`` seconds after the start."""
        self._thread.join(max(self._started_s + deadline_s - time.monotonic(), 0))
        return self._inventory

    def close(self) -> None:
        """The thread ends with the reading."""
