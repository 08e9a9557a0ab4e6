"""Run of a program in a new Python: its value, or the error that it ended with."""

import sys

import pytest

from autogpu.snippet import Answer, run_snippet


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        pytest.param("print('start-up'); print([1])", Answer([1]), id="value"),
        pytest.param("raise OSError('x timed out')", Answer(error="OSError: x timed out"), id="error"),
        pytest.param(
            "import os; os.kill(os.getpid(), 9)", Answer(error="the process was killed by signal 9"), id="signal"
        ),
    ],
)
def test_answer_has_a_value_or_an_error(program, expected):
    assert run_snippet(sys.executable, program, {}) == expected


def test_answer_reports_a_passed_deadline_as_an_error():
    answer = run_snippet(sys.executable, "import time; time.sleep(60)", {}, deadline_s=1.0)
    assert answer == Answer(error="timed out after 1 s", timed_out=True)
