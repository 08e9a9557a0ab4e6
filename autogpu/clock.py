"""The time, as the kernel tells it: a script may have put another clock in the place of Python's, as freezegun does."""

from __future__ import annotations

import time

if hasattr(time, "clock_gettime"):
    _read, _MONOTONIC, _REAL = time.clock_gettime, time.CLOCK_MONOTONIC, time.CLOCK_REALTIME
    _THREAD_CPU = getattr(time, "CLOCK_THREAD_CPUTIME_ID", time.CLOCK_MONOTONIC)

    def monotonic_s() -> float:
        """Seconds since some moment; never goes back, whatever becomes of the date."""
        return _read(_MONOTONIC)

    def unix_s() -> float:
        """Seconds since 1970."""
        return _read(_REAL)

    def thread_cpu_s() -> float:
        """Seconds for which this thread has had a processor, the kernel's work for it included."""
        return _read(_THREAD_CPU)

else:  # Windows, where nothing of this is used
    monotonic_s, unix_s, thread_cpu_s = time.monotonic, time.time, time.thread_time
