"""The lines about a wait, and when they are printed."""

import re

import pytest

from autogpu.lease import GaveUp, QueueState
from autogpu.policy.kinds import DURATION
from autogpu.reporting.waiting import WaitingReport, gave_up, waiting_lines
from autogpu.selection.model import LastRuns
from autogpu.text import GIB, LINE_WIDTH
from tests.support.selections import BOB, ME, claim, decided
from tests.support.values import gpu

WAITING = decided(gpu(0), count=2, busy="wait", awaited=[gpu(0).uuid])
SECOND_LINE = "2 GPUs are requested, but this job can get at most 1; GPU 0: a job in the queue waits for this GPU"


def state(waited_s, position=1, count=1, timeout_s=1800.0):
    return QueueState((None,) * (position - 1), count, waited_s, timeout_s)


@pytest.mark.parametrize(
    ("queue", "expected"),
    [
        (state(0.0), "waiting for a GPU, place 1 in the queue, waited 0 s of 30 min"),
        (state(700.0, 3), "waiting for a GPU, place 3 in the queue, waited 12 min of 30 min"),
        (state(1803.0, count=2), "waiting for 2 GPUs, place 1 in the queue, waited 30 min"),
        (state(0.0, timeout_s=9000.0), "waiting for a GPU, place 1 in the queue, waited 0 s of 2 h 30 min"),
    ],
    ids=["at-once", "behind-others", "after-its-wait", "limit-is-not-rounded"],
)
def test_lines_about_a_wait_have_the_count_place_time_and_reason(queue, expected):
    lines = [f"{expected}: no GPU is free; Ctrl-C ends this job", SECOND_LINE]
    assert waiting_lines(queue, WAITING) == lines
    of_gpus = ["  GPU 0: choice 1: free, 0 % busy, 24.0 of 24.0 GiB free, a job in the queue waits for this GPU"]
    assert waiting_lines(queue, WAITING, is_explained=True) == [*lines, *of_gpus]


# What the user holds and asks for, and what the second line says. Four GPUs, and limits.per_user is 2.
CAPPED = [
    ((ME,), 2, "2 GPUs are requested, but the host's limits.per_user allows 2 and you hold 1 already"),
    ((), 3, "3 GPUs are requested, but the host's limits.per_user allows 2"),
    ((), 2, ""),
]


@pytest.mark.parametrize(("holders", "count", "note"), CAPPED)
def test_job_that_waits_for_fewer_gpus_than_requested_has_the_reason(holders, count, note):
    gpus = [gpu(number) for number in range(4)]
    held = {number: claim(24, uid=uid) for number, uid in enumerate([*holders, BOB, BOB, BOB, BOB][:4])}
    waiting = decided(*gpus, held=held, count=count, busy="wait", per_user=2)
    lines = waiting_lines(state(0.0), waiting)
    assert note in lines[1] and ("are requested" in lines[1]) == bool(note)


@pytest.mark.parametrize(
    ("looks", "printed_at_s"),
    [
        pytest.param([(0.0, 1), (2.0, 1), (4.0, 1)], [0.0], id="at-once-and-not-at-every-look"),
        pytest.param([(0.0, 3), (700.0, 3)], [0.0], id="not-at-the-same-place"),
        pytest.param([(0.0, 3), (700.0, 2)], [0.0, 700.0], id="at-another-place"),
        pytest.param([(0.0, 3), (9.0, 2), (299.0, 2), (301.0, 2)], [0.0, 301.0], id="every-five-minutes-at-most"),
        pytest.param([(0.0, 3), (9.0, 2), (301.0, 3)], [0.0], id="not-at-the-place-of-the-last-line"),
        pytest.param([(0.0, 3), (400.0, 2), (500.0, 1), (701.0, 1)], [0, 400, 701], id="at-each-later-place"),
    ],
)
def test_wait_is_reported_at_once_and_if_the_place_in_the_queue_changes(looks, printed_at_s):
    lines = []
    report = WaitingReport(lines.append)
    printed = []
    for waited_s, position in looks:
        before = len(lines)
        report(state(waited_s, position), WAITING)
        printed += [waited_s] * (len(lines) > before)
    assert printed == printed_at_s


LOCKED = "is locked on this host: ask its administrator to change it"
SHARE = "to share a GPU instead: AUTOGPU_BUSY=share"
YEAR_S = 365 * 86400.0


@pytest.mark.parametrize(
    ("timeout_s", "locked", "expected"),
    [
        pytest.param(0.0, (), "to wait longer: AUTOGPU_WAIT=1h", id="no-wait"),
        pytest.param(1800.0, (), "to wait longer: AUTOGPU_WAIT=1h", id="default"),
        pytest.param(7200.0, (), "to wait longer: AUTOGPU_WAIT=4h", id="twice-as-long"),
        pytest.param(300 * 86400.0, (), "to wait longer: AUTOGPU_WAIT=365d", id="no-more-than-the-policy-allows"),
        pytest.param(YEAR_S, (), SHARE, id="longest-wait"),
        pytest.param(1800.0, ["select.wait"], f"select.wait {LOCKED}", id="wait-is-locked"),
        pytest.param(YEAR_S, ["select.busy"], f"select.busy {LOCKED}", id="busy-is-locked"),
    ],
)
def test_end_of_a_wait_names_a_remedy_that_the_policy_accepts(timeout_s, locked, expected):
    what, remedy = gave_up(GaveUp(timeout_s, 3), locked)
    assert what.startswith("gave up after ") and what.endswith(" at place 3")
    assert remedy == f"{expected}; `autogpu status` lists the jobs that hold GPUs"
    advised = re.search("AUTOGPU_WAIT=(.*);", remedy)
    assert advised is None or DURATION.read(advised[1]) > timeout_s


@pytest.mark.parametrize(
    ("wait_s", "second"),
    [
        pytest.param(1800.0, "(the next 30 min only if 10.0 GiB is free); to start now: AUTOGPU_WAIT=0", id="both-fit"),
        pytest.param(
            6000.0, "shares a GPU whose jobs have run 1 min; to start now: AUTOGPU_WAIT=0", id="no-room-for-memory"
        ),
    ],
)
def test_lines_of_a_job_that_will_share_have_ctrl_c_and_autogpu_wait(wait_s, second):
    runs = LastRuns("train.py", 10 * GIB)
    decision = decided(gpu(0), held={0: claim(24)}, last_runs={gpu(0).name: runs}, wait_s=wait_s)
    lines = waiting_lines(state(0.0, timeout_s=wait_s), decision)
    assert lines[0].endswith("; Ctrl-C ends this job") and second in lines[1]
    assert max(map(len, lines)) <= LINE_WIDTH
