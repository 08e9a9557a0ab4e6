"""Sentences that a script prints, and the line about one that autogpu makes wait."""

import pytest

from autogpu.frozen import replace
from autogpu.lease import QueueState
from autogpu.reporting.messages import WaitingReport, few_replicas, not_held, spreading
from autogpu.selection.model import Decision, Verdict
from autogpu.text import span
from tests.support.selections import claim, decided
from tests.support.values import gpu


@pytest.mark.parametrize(
    ("per_user", "held", "end"),
    [
        pytest.param(0, {}, "for more: AUTOGPU_COUNT=3", id="free-ones"),
        pytest.param(1, {}, "no more can be had now: limits.per_user allows 1, all your jobs together", id="cap"),
        pytest.param(1, {1: claim(24), 2: claim(24)}, "no more can be had now", id="all-taken"),
        pytest.param(2, {}, "for more: AUTOGPU_COUNT=2", id="below-the-cap"),
    ],
)
def test_a_strategy_with_few_replicas_is_told_what_stands_in_the_way(per_user, held, end):
    decision = decided(gpu(0), gpu(1), gpu(2), per_user=per_user, held=held)
    (line,) = few_replicas("MirroredStrategy", 1, decision, per_user)
    assert line == f"MirroredStrategy has 1 replica, on 1 of 3 GPUs; {end}"


def test_line_about_gpus_used_without_a_claim_leaves_out_those_of_the_job():
    decision = replace(decided(gpu(0), gpu(1), gpu(2)), of_ranks=(gpu(1).uuid,))
    others = "also uses GPU 0, which this process has not claimed"
    assert spreading("DataParallel", decision) == [f"DataParallel {others}; to use GPU 2 alone: AUTOGPU_VISIBLE=chosen"]
    assert spreading("DataParallel", decided(gpu(0), gpu(1), count="all")) == []


def test_of_gpus_to_hold_those_that_are_shared_are_named_and_the_remedy_where_it_helps():
    busy = decided(gpu(0), held={0: claim(24, age_s=60)}, wait_s=0)
    assert not_held(busy.devices, busy) == "; not reserved: others may join. To wait for a free GPU: --busy wait"
    idle = decided(gpu(0), gpu(1), gpu(2), held={0: claim(24, age_s=3600), 2: claim(24, age_s=3600)}, count=3)
    shared = [device for device in idle.devices if device.index != 1]
    assert not_held(shared, idle) == "; GPU 2 and GPU 0 not reserved: others may join"


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
        pytest.param([look(1803.0)], [1803.0], id="beyond-its-time-of-no-time"),
        pytest.param([look(0.0, 3), look(400.0, 2), look(500.0, 1), look(701.0, 1)], [0, 400, 701], id="and-again"),
    ],
)
def test_a_line_comes_at_once_and_at_another_place(looks, said_at_s):
    lines = []
    report = WaitingReport(lines.append)
    for state, decision in looks:
        report(state, decision)
    assert lines == [
        f"waiting for a GPU, place {state.position} in the queue, "
        f"{span(state.waited_s)}{' of 30 min' * (state.waited_s < 1800)}: {decision.why}; Ctrl-C stops"
        for state, decision in looks
        if state.waited_s in said_at_s
    ]
