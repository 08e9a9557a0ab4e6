"""Tests of ``make test-gpu``: it ends in time, prints a table and leaves no process behind."""

import os
import subprocess
import sys
from select import select

from tests.gpu.__main__ import CHECKS, Check, run
from tests.support.environments import ROOT

HANGS = """
import subprocess
import pytest
@pytest.mark.gpu
def test_without_an_end():
    subprocess.run(["sh", "-c", "exec > {pipe}; echo started; sleep 600"])
"""


def test_check_that_exceeds_its_limit_leaves_no_process(tmp_path):
    pipe, file = tmp_path / "pipe", tmp_path / "test_hangs.py"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    file.write_text(HANGS.format(pipe=pipe))
    check = Check("hangs", 6, [str(file)])
    outcome = run(check, check.limit_s, tmp_path / "report.xml")
    assert (outcome.result, outcome.notes[0]) == ("FAILED", "stopped after 6 s")
    assert os.read(reader, 100) == b"started\n"
    # The pipe becomes readable at its end, when no process has it open for writing.
    assert select([reader], [], [], 60)[0]
    assert os.read(reader, 100) == b""
    os.close(reader)


def test_checks_are_skipped_if_no_time_is_left():
    command = [sys.executable, "-m", "tests.gpu", "--minutes", "0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    rows = done.stdout.splitlines()[-len(CHECKS) :]
    assert [row.split()[-6:] for row in rows] == [["skipped", "0", "no", "time", "was", "left"]] * len(CHECKS)
