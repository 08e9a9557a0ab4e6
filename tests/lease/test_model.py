"""What leases promise, from plain values."""

from __future__ import annotations

import os

from autogpu.lease import Holder, Waiter, Want, process


def holder(name, claims, *, uid=1, group=""):
    return Holder(
        name=name,
        uid=uid,
        is_mine=False,
        is_readable=True,
        pid=1,
        pid_namespace=None,
        start_time=None,
        since_s=0.0,
        script="",
        group=group or name,
        claims=claims,
    )


def waiter(**changes):
    fields = {
        "name": "wait",
        "place": 1,
        "uid": 1,
        "is_mine": False,
        "is_readable": True,
        "silent_s": 0.0,
        "pid": 1,
        "pid_namespace": None,
        "start_time": None,
        "since_s": 0.0,
        "script": "",
        "want": Want(),
    }
    return Waiter(**{**fields, **changes})


def test_claims_are_clamped_to_what_a_gpu_has():
    assert holder("a", {"G": 30, "H": 5, "elsewhere": 1}).clamped({"G": 24, "H": 24}) == {"G": 24, "H": 5}


def test_a_want_could_use_a_candidate_with_room():
    want = Want(bytes_per_gpu=8, uuids=("G", "H"))

    assert want.could_use("G")
    assert want.could_use("G", 8)
    assert not want.could_use("G", 7)
    assert not want.could_use("X", 100)
    assert Want().could_use("X", 0)


def test_the_silent_the_unreadable_and_those_of_the_future_are_passed_over():
    assert not waiter(silent_s=4.9).is_passed_over
    assert not waiter(silent_s=-1.0).is_passed_over
    assert waiter(silent_s=5.0).is_passed_over
    assert waiter(silent_s=-100.0).is_passed_over
    assert waiter(is_readable=False).is_passed_over


def test_a_pid_is_believed_only_with_namespace_start_and_owner():
    pid, space, start, uid = os.getpid(), process.pid_namespace(), process.start_time(), os.geteuid()

    assert process.pid_here(pid, space, start, uid) == pid
    assert process.pid_here(pid, "pid:[1]", start, uid) is None
    assert process.pid_here(pid, None, start, uid) is None
    assert process.pid_here(pid, space, start + 1, uid) is None
    assert process.pid_here(pid, space, None, uid) is None
    assert process.pid_here(None, space, start, uid) is None
    assert process.pid_here(2**31 - 1, space, start, uid) is None
    assert process.start_time() == process.start_time(pid)
    if uid == 0:
        # Somebody else's lease that names a process of root's: root's processes may be anyone's that can't be
        # dumped.
        assert process.pid_here(pid, space, start, 12345) == pid
