"""Ctrl-C while autogpu makes a script wait: what the script, Python and the shell see of it."""

from __future__ import annotations

import signal
import subprocess
import sys

WAIT = """
import signal, sys
from autogpu.lease import QueueState
from autogpu.reporting.waiting import WaitingReport
from autogpu.selection.model import Decision, Verdict

def wait(is_told):
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

LINE = "autogpu: stopped waiting for a GPU; nothing is claimed\n"


def interrupted(script):
    """Its exit status, and what it wrote after it was interrupted."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    waiting = subprocess.Popen([sys.executable, "-c", WAIT + script], text=True, **pipes)
    try:
        assert waiting.stdout.readline() == "waits\n"
        waiting.send_signal(signal.SIGINT)
        out, errors = waiting.communicate(timeout=60)
    finally:
        waiting.kill()
        waiting.wait()
    return waiting.returncode, out, errors


def test_a_wait_that_nobody_catches_ends_in_one_line_and_by_the_signal():
    assert interrupted("wait(True)") == (-signal.SIGINT, "", LINE)


def test_the_script_catches_it_as_in_plain_python():
    script = "try: wait(True)\nexcept KeyboardInterrupt as error: print(type(error).__name__)"
    assert interrupted(script) == (0, "KeyboardInterrupt\n", "")


def test_what_goes_wrong_after_a_caught_one_is_traced_as_ever():
    status, _, errors = interrupted("try: wait(True)\nexcept KeyboardInterrupt: pass\n1 / 0")
    assert status == 1
    assert errors.startswith("Traceback")
    assert errors.endswith("ZeroDivisionError: division by zero\n")


def test_a_hook_of_the_scripts_own_is_called():
    script = "sys.excepthook = lambda kind, *_: print('mine', kind.__name__)\nwait(True)"
    assert interrupted(script) == (-signal.SIGINT, "mine KeyboardInterrupt\n", "")


def test_an_interrupt_that_ends_no_wait_is_the_scripts():
    status, _, errors = interrupted("wait(False)")
    assert status == -signal.SIGINT
    assert errors.startswith("Traceback")
    assert LINE not in errors
