"""What takes turns comes up in one of them, and nothing else is left out."""

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
        pytest.param([item(), item()], [EVERY, EVERY], id="without-a-mark-always"),
        pytest.param([item(turns(2))] * 3, [[0, 2], [1, 3], [0, 2]], id="as-they-stand-in-the-file"),
        pytest.param([item(turns(2)), item(turns(2), file="b.py")], [[0, 2], [0, 2]], id="each-file-by-itself"),
        pytest.param([item(turns(4)), item(turns(2)), item(turns(4))], [[0], [0, 2], [3]], id="each-number-by-itself"),
        pytest.param([item(turns(4, 1)), item(turns(4, 6))], [[3], [2]], id="by-their-place"),
        pytest.param([item(turns(2, 0), turns(4, 2))], [[2]], id="what-all-marks-ask-for"),
        pytest.param([item(turns(4, 0), turns(4, 1, whole=True))], [[0, 3]], id="or-whole"),
        pytest.param([item(turns(4, 1, whole=True))], [EVERY], id="whole-leaves-nothing-out"),
    ],
)
def test_what_is_due_in_four_turns(items, due):
    ran = [are_due(turn, items) for turn in EVERY]
    assert [[turn for turn in EVERY if ran[turn][place]] for place in range(len(items))] == due
