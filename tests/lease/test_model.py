"""What leases promise, from plain values."""

import os

import pytest

from autogpu import process
from autogpu.frozen import replace
from autogpu.lease import Holder, Waiter


@pytest.mark.parametrize(
    ("silent_s", "pid", "is_unresponsive"),
    [(4.9, 7, False), (-1.0, 7, False), (5.0, 7, True), (-100.0, 7, True), (0.0, None, True)],
)
def test_the_silent_the_unreadable_and_those_of_the_future_are_passed_over(silent_s, pid, is_unresponsive):
    waiter = Waiter("wait", 1, False, pid, silent_s=silent_s)
    assert waiter.is_unresponsive is is_unresponsive


def test_a_pid_is_believed_only_with_namespace_start_and_owner():
    pid, space, start, uid = os.getpid(), process.pid_namespace(), process.start_time(), os.geteuid()
    own = Holder("job", uid, True, pid, space, start)
    assert own.pid_here == pid
    wrong = ({"pid_namespace": "pid:[1]"}, {"pid_namespace": None}, {"start_time": start + 1}, {"start_time": None})
    for changes in (*wrong, {"pid": None}, {"pid": 2**31 - 1}):
        assert replace(own, **changes).pid_here is None, changes
    assert process.start_time() == process.start_time(pid)
    if uid == 0:
        # Root's processes may be anyone's that can't be dumped.
        assert replace(own, uid=12345).pid_here == pid
