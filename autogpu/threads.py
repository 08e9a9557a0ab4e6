"""Whether a thread may wait in a system call without holding up the rest of the process."""

from __future__ import annotations

import threading


def are_real() -> bool:
    """``False`` where gevent or eventlet have put their own in the place of the system's threads."""
    # Up to 3.12 the first, from 3.13 on the second.
    start = getattr(threading, "_start_new_thread", None) or getattr(threading, "_start_joinable_thread", None)
    return start is None or type(start) is type(len)
