"""Ctrl-C while other processes are at work for this one: none of them may be left behind."""

from __future__ import annotations

import signal
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Iterator


class DeferredInterrupt:
    """A context in which SIGINT is kept until it is taken; for the main thread.

    ``KeyboardInterrupt`` is raised inside :meth:`taken`, once, or at the end of the context. Python would raise it
    anywhere: inside ``Popen``, whose process nothing would know of then, and a second time in the code that ends them.
    A process that ignores SIGINT, as after ``nohup``, goes on ignoring it.
    """

    def __init__(self) -> None:
        self._is_taken = False
        self._has_come = False

    def __enter__(self) -> DeferredInterrupt:
        self._before = signal.getsignal(signal.SIGINT)
        if self._before is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._keep)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        # One who is impatient ends the process where it would only print that it was interrupted, without a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL if self._has_come else self._before)
        if self._has_come and kind is None:
            raise KeyboardInterrupt

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Where ``KeyboardInterrupt`` may be raised; also for a SIGINT that came before."""
        self._is_taken = True
        try:
            if self._has_come:
                raise KeyboardInterrupt
            yield
        finally:
            self._is_taken = False

    def _keep(self, number: int, frame: FrameType | None) -> None:
        is_taken, self._is_taken, self._has_come = self._is_taken, False, True
        if is_taken:
            raise KeyboardInterrupt
