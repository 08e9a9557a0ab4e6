"""The lines of a job that waits for a GPU, and how it ends at Ctrl-C."""

from __future__ import annotations

import sys

from autogpu.process import monotonic_s
from autogpu.reporting import messages
from autogpu.reporting.stderr import is_terminal, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Callable

    from autogpu.lease import QueueState
    from autogpu.selection.model import Decision

_LINE_EVERY_S = 300.0
_LINE_EVERY_ON_TERMINAL_S = 10.0


class WaitingReport:
    """Prints a line about the queue at once, and then from time to time."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._printed_s: float | None = None

    def __call__(self, state: QueueState, decision: Decision) -> None:
        """See :func:`autogpu.acquire.acquire`."""
        every_s = _LINE_EVERY_ON_TERMINAL_S if is_terminal() else _LINE_EVERY_S
        if self._printed_s is None or monotonic_s() - self._printed_s >= every_s:
            self._printed_s = monotonic_s()
            self._say(messages.waiting(state, decision))

    def interrupted(self, error: KeyboardInterrupt) -> None:
        """Ctrl-C in a wait, which the line about it offers, is no failure to trace; before any, it is the script's."""
        if self._printed_s is not None:
            _end_in_one_line(error, messages.STOPPED_WAITING)


def _end_in_one_line(error: KeyboardInterrupt, line: str) -> None:
    """Let Python print ``line`` in place of a traceback, if the script catches ``error`` nowhere.

    It stays the exception that the script expects, and ends the process by SIGINT as always. A ``sys.excepthook`` of
    the script's own is left as it is.
    """
    before = sys.excepthook
    # A subclass of KeyboardInterrupt would do without a hook, and Python ends by SIGINT for that very class only.
    if before is not sys.__excepthook__:
        return

    def report(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        sys.excepthook = before
        if value is error:
            say(line)
        else:
            before(kind, value, trace)

    sys.excepthook = report
