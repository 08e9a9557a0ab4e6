"""What leases promise, from plain values."""

from __future__ import annotations

import os

import pytest

from autogpu import process_identity
from autogpu.lease import Demand, Holder, Waiter


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
        "demand": Demand(),
    }
    return Waiter(**{**fields, **changes})


def test_a_demand_could_use_a_candidate_with_room():
    demand = Demand(bytes_per_gpu=8, uuids=("G", "H"))

    assert demand.could_use("G")
    assert demand.could_use("G", 8)
    assert not demand.could_use("G", 7)
    assert not demand.could_use("X", 100)
    assert Demand().could_use("X", 0)


def test_the_silent_the_unreadable_and_those_of_the_future_are_passed_over():
    assert not waiter(silent_s=4.9).is_unresponsive
    assert not waiter(silent_s=-1.0).is_unresponsive
    assert waiter(silent_s=5.0).is_unresponsive
    assert waiter(silent_s=-100.0).is_unresponsive
    assert waiter(is_readable=False).is_unresponsive


def test_a_pid_is_believed_only_with_namespace_start_and_owner():
    pid, space, start, uid = os.getpid(), process_identity.pid_namespace(), process_identity.start_time(), os.geteuid()

    assert process_identity.pid_here(pid, space, start, uid) == pid
    assert process_identity.pid_here(pid, "pid:[1]", start, uid) is None
    assert process_identity.pid_here(pid, None, start, uid) is None
    assert process_identity.pid_here(pid, space, start + 1, uid) is None
    assert process_identity.pid_here(pid, space, None, uid) is None
    assert process_identity.pid_here(None, space, start, uid) is None
    assert process_identity.pid_here(2**31 - 1, space, start, uid) is None
    assert process_identity.start_time() == process_identity.start_time(pid)
    if uid == 0:
        # Somebody else's lease that names a process of root's: root's processes may be anyone's that can't be
        # dumped.
        assert process_identity.pid_here(pid, space, start, 12345) == pid


@pytest.mark.parametrize(
    ("wanted", "others", "is_included"),
    [
        (Demand(), Demand(), True),
        (Demand(2), Demand(1), False),
        (Demand(1), Demand(2), True),
        (Demand(bytes_per_gpu=8), Demand(bytes_per_gpu=8), True),
        (Demand(bytes_per_gpu=8), Demand(bytes_per_gpu=9), True),
        (Demand(bytes_per_gpu=9), Demand(bytes_per_gpu=8), False),
        # All of a GPU.
        (Demand(), Demand(bytes_per_gpu=8), False),
        (Demand(bytes_per_gpu=8), Demand(), True),
        # Any GPU.
        (Demand(), Demand(uuids=("G",)), True),
        (Demand(uuids=("G",)), Demand(), False),
        (Demand(uuids=("G", "H")), Demand(uuids=("G",)), True),
        (Demand(uuids=("G",)), Demand(uuids=("G", "H")), False),
    ],
    ids=str,
)
def test_a_demand_includes_what_would_serve_it_too(wanted, others, is_included):
    assert wanted.includes(others) is is_included
