"""What threads are in this process, and what becomes of their locks in a fork."""

from __future__ import annotations

import functools
import os
import select
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, TypeVar

    Method = TypeVar("Method", bound=Callable[..., Any])


def are_real() -> bool:
    """Whether a thread may wait in a system call without holding up the others.

    ``False`` where gevent or eventlet have put their own in the place of the system's.
    """
    # Up to 3.12 the first, from 3.13 on the second.
    start = getattr(threading, "_start_new_thread", None) or getattr(threading, "_start_joinable_thread", None)
    return start is None or type(start) is type(len)


def is_readable(descriptor: int, within_s: float) -> bool:
    """Wait until there is something to read, or the other end has gone."""
    within_s = max(0.0, within_s)
    # poll, not select: a program with many files has descriptors above 1023.
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(within_s * 1000))
    # Eventlet takes it away; what it puts in the place of the other one has no such bound.
    return bool(select.select([descriptor], [], [], within_s)[0])


def in_forked_children(function: Callable[[], None]) -> None:
    """Call ``function`` in every child that is forked from now on: a lock may be held by a thread that it lacks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


def one_at_a_time(method: Method) -> Method:
    """Let one thread at a time run the methods of an object that has a ``lock``, which may be taken again."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self.lock:
            return method(self, *args, **kwargs)

    return call  # type: ignore[return-value]
