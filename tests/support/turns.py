"""What does not fit into every run takes turns, by the number of commits: over a dozen of them everything has run.

``make`` gives pytest ``--turn`` with that number; without it, as in ``make test-all`` or when one runs a file by hand,
nothing is left out. A test says how seldom it runs::

    @pytest.mark.turns(4)                 # every fourth of the tests of this file that say so
    @pytest.mark.turns(4, row)            # the same, where the test knows its place among them
    @pytest.mark.turns(5, n, whole=True)  # in one turn of five it runs whatever else it says
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Sequence

import pytest


def is_on(turn: int, of: int, position: int) -> bool:
    """Tell whether it is this position's turn; it is in one of ``of`` turns that follow one another."""
    return (turn + position) % of == 0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--turn", type=int, metavar="N", help="leave out what is not due in turn N, a number of commits")


def pytest_report_header(config: pytest.Config) -> str:
    turn = config.getoption("turn")
    return "turns: everything" if turn is None else f"turns: what is due in turn {turn} (the number of commits)"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    turn = config.getoption("turn")
    if turn is None:
        return
    due = are_due(turn, items)
    config.hook.pytest_deselected(items=[item for item, is_due in zip(items, due) if not is_due])
    items[:] = [item for item, is_due in zip(items, due) if is_due]


def are_due(turn: int, items: Sequence[Any]) -> list[bool]:
    """For each test, whether it runs in this turn."""
    count: Counter[tuple[str, int]] = Counter()
    due = []
    for item in items:
        parts, wholes = [], []
        for mark in item.iter_markers("turns"):
            of, *position = mark.args
            if not position:
                place = item.nodeid.partition("::")[0], of
                position = [count[place]]
                count[place] += 1
            (wholes if mark.kwargs.get("whole") else parts).append(is_on(turn, of, *position))
        due.append(any(wholes) or all(parts))
    return due
