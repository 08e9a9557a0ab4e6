"""The table of failure modes names each number once, and the tests that there are."""

import re
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
ROWS = re.findall(r"^\| (\d+) \|(.*)\|(.*)\|$", (HERE / "README.md").read_text(), re.MULTILINE)
NAME = re.compile(r"`(test_\w+)`")


def test_each_number_is_there_once_in_order_and_has_a_test_or_a_reason():
    assert [int(number) for number, _, _ in ROWS] == list(range(1, 42))
    assert [number for number, _, shown_by in ROWS if not shown_by.strip()] == []


def test_the_tests_of_a_number_are_in_its_row_and_nowhere_else():
    named = [(int(number), name) for number, _, shown_by in ROWS for name in NAME.findall(shown_by)]
    files = [file for file in HERE.glob("test_*.py") if file.name != Path(__file__).name]
    there = [name for file in files for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)]
    assert Counter(named) == Counter((int(name.split("_")[1]), name) for name in there)
