"""Tests that don't fit into every run take turns by the number of commits. In a dozen commits all of them have run.

``make`` passes that number to pytest as ``--turn``. Without it, as in ``make test-all`` or when a file is run by hand,
all tests run. A mark sets how often a test runs::

    @pytest.mark.turns(4)                 # in one of four turns; the tests of this file with this mark are spread
    @pytest.mark.turns(4, row)            # in one of four turns; `row` is the test's position among them
    @pytest.mark.turns(5, n, whole=True)  # in one of five turns, even if the test's other marks exclude it
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Sequence

import pytest


def is_on(turn: int, of: int, position: int) -> bool:
    """True if ``position`` is due in ``turn``. Each position is due in one of ``of`` successive turns."""
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
