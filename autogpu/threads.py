"""What threads are in this process, and what becomes of their locks in a fork."""

from __future__ import annotations

import functools
import os
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


def in_forked_children(function: Callable[[], None]) -> None:
    """Call ``function`` in every child that is forked from now on: a lock may be held by a thread that it lacks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


def renewed_in_children(owner: Any, name: str = "lock") -> threading.RLock:
    """A lock that may be taken again, for an attribute of ``owner``; children that are forked get another, open one."""

    def renew() -> None:
        setattr(owner, name, threading.RLock())

    in_forked_children(renew)
    return threading.RLock()


def one_at_a_time(method: Method) -> Method:
    """Let one thread at a time run the methods of an object that has a ``lock``, which may be taken again."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self.lock:
            return method(self, *args, **kwargs)

    return call  # type: ignore[return-value]
