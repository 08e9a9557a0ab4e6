"""The end of what CI prints tells what happened, whichever way it ends."""

import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from tests.support.environments import ROOT

MAKEFILE = """
good: ; @$(PYTEST) --junit-xml=.cache/reports/$@.xml test_good.py
bad: ; @$(PYTEST) --junit-xml=.cache/reports/$@.xml test_bad.py
unread: ; @$(PYTEST) --junit-xml=.cache/reports/$@.xml test_unread.py
broken: ; @echo "no such option: --fox"; exit 2
turn: ; @echo "turn '$(TURN)'"
hangs: ; @echo begun; exec sleep 600
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
    """Start the suites of a project of its own."""
    makefile = MAKEFILE.replace("$(PYTEST)", f"{sys.executable} -m pytest -q -p no:cacheprovider")
    files = {
        "Makefile": makefile,
        "test_good.py": GOOD,
        "test_bad.py": BAD,
        "test_unread.py": "import no_such_module\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "PYTEST"))}

    def start(*arguments):
        command, given = [sys.executable, "-m", "tests.suites", *arguments], {**environ, "PYTHONPATH": str(ROOT)}
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(command, env={**given, "TURN": "7"}, cwd=tmp_path, **pipes)

    return start


def told(process):
    """Its exit status and what it prints below the last suite's own lines."""
    output, _ = process.communicate(timeout=120)
    return process.returncode, output[output.rindex("suite  ") :].splitlines()


def test_of_suites_that_pass_there_is_a_table(suites):
    status, lines = told(suites("good", "turn"))
    head, good, turn, whole = [line.split()[:4] for line in lines]
    assert (status, head) == (0, ["suite", "tests", "skipped", "failed"])
    assert (good, turn, whole[:2]) == (["good", "1", "1", "0"], ["turn", "-", "0", "0"], ["all", "1"])


def test_the_first_suite_with_a_failure_ends_it_and_its_failures_are_named(suites):
    status, lines = told(suites("good", "bad", "turn"))
    assert (status, lines[2].split()[:4]) == (1, ["bad", "3", "0", "2"])
    failed = [line.partition("::")[2] for line in lines if line.startswith("FAILED test_bad.py")]
    assert failed == ["test_of_size[8 GiB]", "test_of_server"]
    assert any("'8 GiB' == '8GiB'" in line for line in lines)
    assert any("the port is taken" in line for line in lines)
    assert lines[-1] == "not run: turn"


@pytest.mark.parametrize(
    ("suite", "row", "reason"),
    [
        pytest.param("unread", "unread 1 0 1", "No module named 'no_such_module'", id="a-file-that-is-not-imported"),
        pytest.param("broken", "broken - 0 yes", "    no such option: --fox", id="a-suite-without-tests"),
    ],
)
def test_of_what_runs_no_test_the_reason_is_told(suites, suite, row, reason):
    status, lines = told(suites(suite, "good"))
    assert (status, lines[1].split()[:4]) == (1, row.split())
    assert any(line.startswith("FAILED ") and suite in line for line in lines)
    assert any(line.endswith(reason) for line in lines)


def test_ended_by_a_time_limit_it_tells_what_is_known(suites):
    process = suites("good", "hangs")
    while process.stdout.readline() != "begun\n":
        pass
    process.send_signal(signal.SIGTERM)
    status, lines = told(process)
    assert (status, [line.split()[0] for line in lines[1:3]]) == (1, ["good", "hangs"])
    assert "FAILED make hangs: exit status" in "\n".join(lines)


@pytest.mark.parametrize(("arguments", "turn"), [([], "7"), (["--all"], "")], ids=["by-turns", "all"])
def test_all_leaves_out_no_turn(suites, arguments, turn):
    output, _ = suites(*arguments, "turn").communicate(timeout=120)
    assert f"turn '{turn}'\n" in output
