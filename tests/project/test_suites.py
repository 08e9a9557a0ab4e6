"""Tests of the table that CI prints at its end, for suites that pass and suites that fail."""

import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support.environments import ROOT

MAKEFILE = """
good: ; @$(PYTEST) --junit-xml=.cache/reports/$@.xml test_good.py
bad: ; @$(PYTEST) --junit-xml=.cache/reports/$@.xml test_bad.py
turn: ; @echo "turn '$(TURN)'"
"""
GOOD = """
import pytest
def test_one(): pass
@pytest.mark.skip(reason="no GPU")
def test_two(): pass
"""
BAD = """
import pytest
@pytest.fixture
def server(): raise OSError("the port is taken")
@pytest.mark.parametrize("size", ["8 GiB"])
def test_of_size(size): assert size == "8GiB"
def test_of_server(server): pass
def test_that_is_fine(): pass
"""


@pytest.fixture
def suites(tmp_path):
    """Return a function that starts suites of a small project made for these tests."""
    makefile = MAKEFILE.replace("$(PYTEST)", f"{sys.executable} -m pytest -q -p no:cacheprovider")
    files = {"Makefile": makefile, "test_good.py": GOOD, "test_bad.py": BAD}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "PYTEST"))}

    def start(*arguments):
        command, given = [sys.executable, "-m", "tests.suites", *arguments], {**environ, "PYTHONPATH": str(ROOT)}
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(command, env={**given, "TURN": "7"}, cwd=tmp_path, **pipes)

    return start


def told(process):
    """Wait for the process. Return its exit status and the table, with the lines after it."""
    output, _ = process.communicate(timeout=120)
    return process.returncode, output[output.rindex("suite  ") :].splitlines()


def test_suites_that_pass_are_listed_in_a_table(suites):
    status, lines = told(suites("good", "turn"))
    head, good, turn, whole = [line.split()[:4] for line in lines]
    assert (status, head) == (0, ["suite", "tests", "skipped", "failed"])
    assert (good, turn, whole[:2]) == (["good", "1", "1", "0"], ["turn", "-", "0", "0"], ["all", "1"])


def test_first_suite_that_fails_ends_the_run_and_lists_its_failures(suites):
    status, lines = told(suites("good", "bad", "turn"))
    assert (status, lines[2].split()[:4]) == (1, ["bad", "3", "0", "2"])
    failed = [line.partition("::")[2] for line in lines if line.startswith("FAILED test_bad.py")]
    assert failed == ["test_of_size[8 GiB]", "test_of_server"]
    assert any("'8 GiB' == '8GiB'" in line for line in lines)
    assert any("the port is taken" in line for line in lines)
    assert lines[-1] == "not run: turn"
