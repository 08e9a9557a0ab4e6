"""The time, as the kernel tells it: a script may have put another clock in the place of Python's, as freezegun does."""

from __future__ import annotations

import time

if hasattr(time, "clock_gettime"):
    _read, _MONOTONIC, _REAL = time.clock_gettime, time.CLOCK_MONOTONIC, time.CLOCK_REALTIME

    def monotonic_s() -> float:
        """Seconds since some moment; never goes back, whatever becomes of the date."""
        return _read(_MONOTONIC)

    def unix_s() -> float:
        """Seconds since 1970."""
        return _read(_REAL)

else:  # Windows, where nothing of this is used
    monotonic_s, unix_s = time.monotonic, time.time
