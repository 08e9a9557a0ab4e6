"""A script that autogpu makes wait: the line about it, and what Ctrl-C does then to script, Python and shell."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest

from autogpu.lease import QueueState
from autogpu.reporting.waiting import WaitingReport
from autogpu.selection.model import Decision, Verdict


def test_a_line_comes_at_once_and_not_at_every_look():
    lines = []
    report = WaitingReport(lines.append)
    decision = Decision(Verdict.WAIT, "no GPU is free (GPU 0: 99 % busy)")
    for waited_s in (0.0, 2.0, 4.0):
        report(QueueState(3, (), (), waited_s, 1800.0), decision)
    assert lines == [
        "waiting for a GPU, place 3 in the queue, 0 s of 30 min: no GPU is free (GPU 0: 99 % busy); Ctrl-C stops"
    ]


WAIT = """
import signal, sys
from autogpu.lease import QueueState
from autogpu.reporting.waiting import WaitingReport
from autogpu.selection.model import Decision, Verdict

def wait(is_told=True):
    report = WaitingReport(lambda line: None)
    if is_told:
        report(QueueState(1, (), (), 0.0, 60.0), Decision(Verdict.WAIT, "no GPU is free"))
    try:
        print("waits", flush=True)
        signal.pause()
    except KeyboardInterrupt as error:
        report.interrupted(error)
        raise
"""
CATCH = "try: wait()\nexcept KeyboardInterrupt as error: print(type(error).__name__)\n"
LINE = re.escape("autogpu: stopped waiting for a GPU; nothing is claimed\n")


@pytest.mark.parametrize(
    ("script", "status", "out", "errors"),
    [
        pytest.param("wait()", -signal.SIGINT, "", LINE, id="one-line-and-the-signal-where-nobody-catches-it"),
        pytest.param(CATCH, 0, "KeyboardInterrupt\n", "", id="caught-as-in-plain-python"),
        pytest.param(CATCH + "1 / 0", 1, "KeyboardInterrupt\n", "Traceback.*: division by zero\n", id="later-errors"),
        pytest.param(
            "sys.excepthook = lambda kind, *_: print('mine', kind.__name__)\nwait()",
            -signal.SIGINT,
            "mine KeyboardInterrupt\n",
            "",
            id="the-scripts-own-hook-is-called",
        ),
        pytest.param(
            "wait(False)", -signal.SIGINT, "", "Traceback.*\nKeyboardInterrupt\n", id="in-no-wait-the-scripts"
        ),
    ],
)
def test_ctrl_c_in_a_wait(script, status, out, errors):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    waiting = subprocess.Popen([sys.executable, "-c", WAIT + script], text=True, **pipes)
    try:
        assert waiting.stdout.readline() == "waits\n"
        waiting.send_signal(signal.SIGINT)
        found_out, found_errors = waiting.communicate(timeout=60)
    finally:
        waiting.kill()
        waiting.wait()
    assert (waiting.returncode, found_out) == (status, out)
    assert re.fullmatch(errors, found_errors, re.DOTALL), found_errors
