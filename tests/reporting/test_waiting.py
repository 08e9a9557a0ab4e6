"""The line about a script that autogpu makes wait."""

from __future__ import annotations

import pytest

from autogpu.lease import QueueState
from autogpu.reporting.messages import WaitingReport
from autogpu.reporting.text import span
from autogpu.selection.model import Cause, Decision, Ranking, Rejection, Verdict
from tests.support.host_states import holder
from tests.support.values import gpu


def look(waited_s, position=1, *, holds=("job.1",), also=(), pids=(7,), busy=88):
    """After so long, of a process that GPU 0 would serve; ``also`` holds GPU 1, which the policy excludes."""
    why = f"no GPU is free (GPU 0: {busy} % busy)"
    first, second = gpu(0, busy=busy, pids=pids), gpu(1)
    ranking = Ranking(rejected=(Rejection(first, why, Cause.IN_USE), Rejection(second, "", Cause.EXCLUDED_BY_POLICY)))
    holders = [*(holder(name, (0, 24)) for name in holds), *(holder(name, (1, 24)) for name in also)]
    state = QueueState((None,) * (position - 1), tuple(holders), 1, waited_s, 1800.0)
    return state, Decision(Verdict.WAIT, why, ranking=ranking)


@pytest.mark.parametrize(
    ("looks", "said_at_s"),
    [
        pytest.param([look(0.0), look(2.0), look(4.0)], [0.0], id="at-once-and-not-at-every-look"),
        pytest.param([look(0.0, 3), look(700.0, 3)], [0.0], id="not-where-nothing-has-changed"),
        pytest.param([look(0.0), look(700.0, busy=31)], [0.0], id="not-for-other-readings"),
        pytest.param([look(0.0), look(700.0, also=["job.2"])], [0.0], id="not-for-jobs-elsewhere"),
        pytest.param([look(0.0, 3), look(700.0, 2)], [0.0, 700.0], id="another-place"),
        pytest.param([look(0.0), look(700.0, holds=["job.2"])], [0.0, 700.0], id="another-job-has-the-gpu"),
        pytest.param([look(0.0), look(700.0, pids=[8])], [0.0, 700.0], id="another-process-without-a-claim"),
        pytest.param([look(0.0, 3), look(9.0, 2), look(299.0, 2), look(301.0, 2)], [0.0, 301.0], id="seldom"),
        pytest.param([look(0.0, 3), look(9.0, 2), look(301.0, 3)], [0.0], id="what-has-passed-is-not-told"),
        pytest.param([look(0.0, 3), look(400.0, 2), look(500.0, 1), look(701.0, 1)], [0, 400, 701], id="and-again"),
    ],
)
def test_a_line_comes_at_once_and_where_another_thing_is_waited_for(looks, said_at_s):
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
