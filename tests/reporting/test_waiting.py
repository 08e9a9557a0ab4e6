"""The line about a wait, and when it is printed."""

import pytest

from autogpu.lease import GaveUp, QueueState
from autogpu.reporting.waiting import WaitingReport, gave_up, waiting_line
from tests.support.selections import decided
from tests.support.values import gpu

WAITING = decided(gpu(0), count=2, busy="wait", awaited=[gpu(0).uuid])
WHY = "no GPU is free (GPU 0: a job in the queue waits for it); 2 are asked for, there are no more than 1"


def state(waited_s, position=1, count=1, timeout_s=1800.0):
    return QueueState((None,) * (position - 1), count, waited_s, timeout_s)


@pytest.mark.parametrize(
    ("queue", "expected"),
    [
        (state(0.0), "waiting for a GPU, place 1 in the queue, 0 s of 30 min"),
        (state(700.0, 3), "waiting for a GPU, place 3 in the queue, 12 min of 30 min"),
        (state(1803.0, count=2), "waiting for 2 GPUs, place 1 in the queue, 30 min"),
        (state(0.0, timeout_s=9000.0), "waiting for a GPU, place 1 in the queue, 0 s of 2 h 30 min"),
    ],
    ids=["at-once", "behind-others", "after-its-wait", "limit-is-not-rounded"],
)
def test_line_about_a_wait(queue, expected):
    assert waiting_line(queue, WAITING) == f"{expected}: {WHY}; Ctrl-C stops"


@pytest.mark.parametrize(
    ("looks", "printed_at_s"),
    [
        pytest.param([(0.0, 1), (2.0, 1), (4.0, 1)], [0.0], id="at-once-and-not-at-every-look"),
        pytest.param([(0.0, 3), (700.0, 3)], [0.0], id="not-at-the-same-place"),
        pytest.param([(0.0, 3), (700.0, 2)], [0.0, 700.0], id="at-another-place"),
        pytest.param([(0.0, 3), (9.0, 2), (299.0, 2), (301.0, 2)], [0.0, 301.0], id="every-five-minutes-at-most"),
        pytest.param([(0.0, 3), (9.0, 2), (301.0, 3)], [0.0], id="not-at-a-place-that-has-passed"),
        pytest.param([(0.0, 3), (400.0, 2), (500.0, 1), (701.0, 1)], [0, 400, 701], id="at-each-later-place"),
    ],
)
def test_line_about_a_wait_is_printed_at_once_and_at_another_place(looks, printed_at_s):
    lines = []
    report = WaitingReport(lines.append)
    printed = []
    for waited_s, position in looks:
        before = len(lines)
        report(state(waited_s, position), WAITING)
        printed += [waited_s] * (len(lines) - before)
    assert printed == printed_at_s


@pytest.mark.parametrize(("timeout_s", "hours"), [(0.0, 1), (1800.0, 1), (7200.0, 4)])
def test_end_of_a_wait_names_the_place_and_a_longer_wait(timeout_s, hours):
    what, remedy = gave_up(GaveUp(timeout_s, 3))
    assert what.startswith("gave up after ") and what.endswith(" at place 3")
    assert remedy == f"to wait longer: AUTOGPU_WAIT={hours}h; `autogpu status` lists the holders"
