"""Properties of Holder and Waiter values, and the owner of a process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autogpu import process, users
from autogpu.frozen import replace
from autogpu.lease import Holder, Waiter
from tests.lease.conftest import ALICE, needs_root


@pytest.mark.parametrize(
    ("silent_s", "pid", "is_unresponsive"),
    [(4.9, 7, False), (-1.0, 7, False), (5.0, 7, True), (-100.0, 7, True), (0.0, None, True)],
)
def test_waiter_without_recent_heartbeat_or_pid_is_unresponsive(silent_s, pid, is_unresponsive):
    waiter = Waiter("wait", 1, False, pid, silent_s=silent_s)
    assert waiter.is_unresponsive is is_unresponsive


def test_pid_here_needs_a_matching_namespace_start_time_and_owner():
    pid, space, start, uid = os.getpid(), process.pid_namespace(), process.start_time(), os.geteuid()
    own = Holder("job", uid, True, pid, space, start)
    assert own.pid_here == pid
    wrong = ({"pid_namespace": "pid:[1]"}, {"pid_namespace": None}, {"start_time": start + 1}, {"start_time": None})
    for changes in (*wrong, {"pid": None}, {"pid": 2**31 - 1}):
        assert replace(own, **changes).pid_here is None, changes
    assert process.start_time() == process.start_time(pid)
    assert replace(own, uid=ALICE).pid_here is None


PR_SET_DUMPABLE = 4
UNDUMPABLE = f"""
import ctypes, os, sys
os.setuid({ALICE})
ctypes.CDLL(None).prctl({PR_SET_DUMPABLE}, 0)
print(flush=True)
sys.stdin.read()
"""


@needs_root
def test_owner_of_an_undumpable_process_is_its_user_not_root():
    with subprocess.Popen([sys.executable, "-c", UNDUMPABLE], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as alices:
        assert alices.stdout.readline()
        assert Path(f"/proc/{alices.pid}/fd").stat().st_uid == 0
        assert users.owner(alices.pid) == ALICE
        alices.communicate(timeout=60)
