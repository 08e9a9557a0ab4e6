"""What a person sees of a job that waits for a GPU."""

from __future__ import annotations

from autogpu.clock import monotonic_s
from autogpu.reporting import messages
from autogpu.reporting.interrupt import end_in_one_line
from autogpu.reporting.stderr import is_terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
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
            end_in_one_line(error, messages.STOPPED_WAITING)
