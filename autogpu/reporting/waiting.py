"""The lines of a job that waits for a GPU, and how it ends at Ctrl-C."""

from __future__ import annotations

import sys

from autogpu.reporting.stderr import say
from autogpu.reporting.text import span

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Callable

    from autogpu.lease import QueueState
    from autogpu.selection.model import Decision

# Seldom enough for a log, and for what a person does in that terminal.
_LINE_EVERY_S = 300.0


class WaitingReport:
    """Prints a line about the queue at once, and again when another place or other jobs make this one wait."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._printed_s: float | None = None
        self._printed: object = None

    def __call__(self, state: QueueState, decision: Decision) -> None:
        """See :func:`autogpu.acquire.acquire`."""
        if self._printed_s is not None and state.waited_s - self._printed_s < _LINE_EVERY_S:
            return
        now = _what_it_waits_for(state, decision)
        if now != self._printed:
            self._printed_s, self._printed = state.waited_s, now
            gpus = "a GPU" if state.count == 1 else f"{state.count} GPUs"
            waited = f"{span(state.waited_s)} of {span(state.timeout_s)}"
            place = f"waiting for {gpus}, place {state.position} in the queue, {waited}"
            self._say(f"{place}: {decision.why}; Ctrl-C stops")

    def interrupted(self, error: KeyboardInterrupt) -> None:
        """Ctrl-C in a wait, which the line about it offers, is no failure to trace; before any, it is the script's."""
        if self._printed_s is not None:
            _end_in_one_line(error, "stopped waiting for a GPU; nothing is claimed")


def _what_it_waits_for(state: QueueState, decision: Decision) -> object:
    """What a line about the wait tells, without the readings, which differ at every look."""
    usable = {device.uuid: device.compute_processes or () for device in decision.ranking.suitable}
    holders = frozenset(holder.name for holder in state.holders if not holder.claims.keys().isdisjoint(usable))
    return state.position, holders, frozenset(process.pid for listed in usable.values() for process in listed)


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
