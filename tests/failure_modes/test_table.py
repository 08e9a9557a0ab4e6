"""The table in README.md lists each failure mode once, and each test of this folder."""

import re
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
ROWS = re.findall(r"^\| (\d+) \|(.*)\|(.*)\|$", (HERE / "README.md").read_text(), re.MULTILINE)
NAME = re.compile(r"`(test_\w+)`")


def test_each_number_is_listed_once_in_order_with_a_test_or_a_reason():
    assert [int(number) for number, _, _ in ROWS] == list(range(1, 42))
    assert [number for number, _, shown_by in ROWS if not shown_by.strip()] == []


def test_each_test_is_listed_only_in_the_row_of_its_number():
    named = [(int(number), name) for number, _, shown_by in ROWS for name in NAME.findall(shown_by)]
    files = [file for file in HERE.glob("test_*.py") if file.name != Path(__file__).name]
    there = [name for file in files for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)]
    assert Counter(named) == Counter((int(name.split("_")[1]), name) for name in there)
