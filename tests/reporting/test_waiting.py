"""The line about a script that autogpu makes wait."""

from __future__ import annotations

import pytest

from autogpu.lease import QueueState
from autogpu.reporting.messages import WaitingReport
from autogpu.reporting.text import span
from autogpu.selection.model import Decision, Verdict


def look(waited_s, position=1, *, busy=88):
    state = QueueState((None,) * (position - 1), 1, waited_s, 1800.0)
    return state, Decision(Verdict.WAIT, f"no GPU is free (GPU 0: {busy} % busy)")


@pytest.mark.parametrize(
    ("looks", "said_at_s"),
    [
        pytest.param([look(0.0), look(2.0), look(4.0)], [0.0], id="at-once-and-not-at-every-look"),
        pytest.param([look(0.0, 3), look(700.0, 3)], [0.0], id="not-where-nothing-has-changed"),
        pytest.param([look(0.0), look(700.0, busy=31)], [0.0], id="not-for-other-readings"),
        pytest.param([look(0.0, 3), look(700.0, 2)], [0.0, 700.0], id="another-place"),
        pytest.param([look(0.0, 3), look(9.0, 2), look(299.0, 2), look(301.0, 2)], [0.0, 301.0], id="seldom"),
        pytest.param([look(0.0, 3), look(9.0, 2), look(301.0, 3)], [0.0], id="what-has-passed-is-not-told"),
        pytest.param([look(0.0, 3), look(400.0, 2), look(500.0, 1), look(701.0, 1)], [0, 400, 701], id="and-again"),
    ],
)
def test_a_line_comes_at_once_and_at_another_place(looks, said_at_s):
    lines = []
    report = WaitingReport(lines.append)
    for state, decision in looks:
        report(state, decision)
    assert lines == [
        f"waiting for a GPU, place {state.position} in the queue, {span(state.waited_s)} of 30 min: {decision.why}; "
        "Ctrl-C stops"
        for state, decision in looks
        if state.waited_s in said_at_s
    ]


def test_a_wait_beyond_its_time_is_of_no_time():
    lines = []
    state, decision = look(1803.0)
    WaitingReport(lines.append)(state, decision)
    assert lines == [f"waiting for a GPU, place 1 in the queue, 30 min: {decision.why}; Ctrl-C stops"]
