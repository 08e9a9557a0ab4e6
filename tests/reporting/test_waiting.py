"""What a person sees of a job that waits."""

from __future__ import annotations

from autogpu.lease import QueueState
from autogpu.reporting.waiting import WaitingReport
from autogpu.selection.model import Decision, Verdict


def test_a_line_comes_at_once_and_not_at_every_look():
    lines = []
    report = WaitingReport(lines.append)
    decision = Decision(Verdict.WAIT, "no GPU is free (GPU 0: 99 % busy)")
    for waited_s in (0.0, 2.0, 4.0):
        report(QueueState(3, (), (), waited_s, 1800.0), decision)
    assert lines == [
        "waiting for a GPU, place 3 in the queue, 0 s of 30 min: no GPU is free (GPU 0: 99 % busy); Ctrl-C stops"
    ]
