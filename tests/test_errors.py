"""Whose an error is that comes out of our own steps: ours to report, or the script's, which must have it."""

import bdb
import enum
import re
import sys
import threading
import types

import pytest

from autogpu.activation import guard
from autogpu.errors import WaitTimeout, is_scripts


def raised(step):
    try:
        step()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


class Injected(Exception):
    """Of a package, none of whose code runs where it is raised."""

    __module__ = "timeouts.of_threads"


def raises(error):
    raise error


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        pytest.param(lambda: 1 / 0, False, id="python"),
        pytest.param(lambda: re.compile("("), False, id="its-library"),
        # To call the class runs a function of Enum's, of which the two signal handlers are that are none.
        pytest.param(lambda: enum.Enum("Colour", "RED")(9), False, id="an-enum"),
        pytest.param(lambda: raises(bdb.BdbQuit()), True, id="a-debugger"),
        pytest.param(lambda: raises(Injected()), True, id="another-thread"),
        pytest.param(lambda: raises(type("Odd", (Exception,), {"__module__": None})()), False, id="of-nowhere"),
        # As those of a framework's own C++ code, which our steps call.
        pytest.param(lambda: raises(Injected("can't parse")), False, id="c-code"),
        pytest.param(lambda: raises(type("Own", (Exception,), {"__module__": "__main__"})()), True, id="the-script"),
        # Raised by what the script has put in the place of a function that we call.
        pytest.param(lambda: raises(type("Own", (Exception,), {"__module__": __name__})()), False, id="by-its-code"),
    ],
)
def test_whose_an_error_is(step, expected, monkeypatch):
    monkeypatch.setitem(sys.modules, "timeouts.of_threads", types.ModuleType("timeouts.of_threads"))
    sys.modules["timeouts.of_threads"].__file__ = "/opt/env/site-packages/timeouts/of_threads.py"
    assert is_scripts(raised(step)) is expected


def test_a_wait_that_is_over_ends_the_script_and_in_a_thread_that_with_an_error(capfd):
    ended = []

    def waits():
        try:
            with guard():
                raise WaitTimeout("gave up after 2 s", remedy="to wait longer: --wait 1h")
        except BaseException as error:
            ended.append((type(error), getattr(error, "code", None)))

    waits()
    thread = threading.Thread(target=waits)
    thread.start()
    thread.join(30)
    assert ended == [(SystemExit, 75), (WaitTimeout, None)]
    assert "gave up after 2 s; to wait longer: --wait 1h" in capfd.readouterr().err
