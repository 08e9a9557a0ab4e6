"""Tests of ``--turn``: a test marked ``turns(n)`` runs in one of n turns, all others in every turn."""

from types import SimpleNamespace

import pytest

from tests.support.turns import are_due

turns = pytest.mark.turns
EVERY = [0, 1, 2, 3]


def item(*marks, file="tests/test_one.py"):
    return SimpleNamespace(nodeid=f"{file}::test_it", iter_markers=lambda name: [each.mark for each in marks])


@pytest.mark.parametrize(
    ("items", "due"),
    [
        pytest.param([item(), item()], [EVERY, EVERY], id="unmarked-tests-run-in-every-turn"),
        pytest.param([item(turns(2))] * 3, [[0, 2], [1, 3], [0, 2]], id="marked-tests-of-a-file-alternate"),
        pytest.param(
            [item(turns(2)), item(turns(2), file="b.py")], [[0, 2], [0, 2]], id="each-file-is-counted-separately"
        ),
        pytest.param(
            [item(turns(4)), item(turns(2)), item(turns(4))], [[0], [0, 2], [3]], id="each-period-is-counted-separately"
        ),
        pytest.param([item(turns(4, 1)), item(turns(4, 6))], [[3], [2]], id="second-argument-is-the-position"),
        pytest.param([item(turns(2, 0), turns(4, 2))], [[2]], id="two-marks-must-both-be-due"),
        pytest.param([item(turns(4, 0), turns(4, 1, whole=True))], [[0, 3]], id="whole-mark-adds-its-own-turns"),
        pytest.param([item(turns(4, 1, whole=True))], [EVERY], id="whole-mark-alone-runs-always"),
    ],
)
def test_items_run_in_the_turns_in_which_they_are_due(items, due):
    ran = [are_due(turn, items) for turn in EVERY]
    assert [[turn for turn in EVERY if ran[turn][place]] for place in range(len(items))] == due
