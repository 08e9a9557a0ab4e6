"""Sentences about a wait in the queue."""

from __future__ import annotations

from typing import Callable, Collection

from autogpu.lease.model import GaveUp, QueueState
from autogpu.policy.kinds import LONGEST_S, duration_text
from autogpu.reporting.choice import notes, reason
from autogpu.reporting.gpus import each_gpu
from autogpu.reporting.policy import unless_locked
from autogpu.selection.decision import Decision
from autogpu.text import exact_span, span, with_notes

# Seconds between two lines of one wait: long enough not to fill a log or disturb work in the terminal.
_LINE_EVERY_S = 300.0

# The line of a process that Ctrl-C ends in the queue.
STOPPED = "stopped while waiting for a GPU"


def waiting_lines(state: QueueState, decision: Decision, *, is_explained: bool = False) -> list[str]:
    """Return the lines of a process in the queue: its place, then the remedies and the obstacles.

    Args:
        is_explained: True to add a line about each GPU.
    """
    gpus = "a GPU" if state.count == 1 else f"{state.count} GPUs"
    # After select.wait a sharing job still waits until the jobs on a GPU have run for one minute: print no limit then.
    limit = f" of {exact_span(state.timeout_s)}" if state.waited_s < state.timeout_s else ""
    place = f"waiting for {gpus}, place {state.position} in the queue, waited {span(state.waited_s)}{limit}"
    lines = with_notes([f"{place}: {reason(decision)}", "Ctrl-C ends this job"], notes(decision))
    return [*lines, *each_gpu(decision)] if is_explained else lines


def gave_up(error: GaveUp, locked: Collection[str]) -> tuple[str, str]:
    """Return the message that a process has waited as long as its policy allows, and a remedy.

    Args:
        locked: Policy keys that the host locks: no remedy may name them.
    """
    # Suggest about twice the time, in whole hours.
    longer_s = min(3600.0 * max(1, round(error.timeout_s / 1800)), LONGEST_S)
    remedy = "to share a GPU instead: AUTOGPU_BUSY=share"
    if longer_s > error.timeout_s:
        remedy = f"to wait longer: AUTOGPU_WAIT={duration_text(longer_s)}"
    what = f"gave up after {exact_span(error.timeout_s)} at place {error.position}"
    return what, f"{unless_locked(remedy, locked)}; `autogpu status` lists the jobs that hold GPUs"


class WaitingReport:
    """The report of one wait: lines at its start and after each change of place, at most every five minutes."""

    def __init__(self, say: Callable[[str], None], *, is_explained: bool = False) -> None:
        self._say = say
        self._is_explained = is_explained
        self._printed: QueueState | None = None

    @property
    def has_waited(self) -> bool:
        return self._printed is not None

    def __call__(self, state: QueueState, decision: Decision) -> None:
        last = self._printed
        has_moved = last is None or state.position != last.position
        if has_moved and (last is None or state.waited_s - last.waited_s >= _LINE_EVERY_S):
            self._printed = state
            for line in waiting_lines(state, decision, is_explained=self._is_explained):
                self._say(line)
