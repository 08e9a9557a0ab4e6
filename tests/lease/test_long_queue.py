"""Those far behind in the queue: they look rarely, and not too rarely."""

from __future__ import annotations

import errno
import os
import signal
import time

import pytest

from autogpu.lease import Demand, Folder, QueueState, Uncoordinated, acquire_lease, mutex
from autogpu.lease.inotify import Watch
from autogpu.lease.queue import _LONGEST_PAUSE_S, _LONGEST_REST_S, _NEAR, _Place, _wait_until
from tests.lease.conftest import Worker, until, waiters

pytestmark = pytest.mark.xdist_group("long-queue")

MANY = _NEAR + 4


def never(holders, ahead):
    return None


@pytest.fixture(scope="module")
def line(parent, tmp_path_factory):
    """A folder in which ``MANY`` wait for GPU-0."""
    path = tmp_path_factory.mktemp("leases")
    path.chmod(0o1777)
    folder = Folder(path, "environment", path.stat().st_uid)
    holder, relay = Worker(parent, path), Worker(parent, path)
    holder.ask("acquire", free=["GPU-0"])
    relay.tell("relay", count=MANY, uuids=["GPU-0"], timeout_s=240)
    until(lambda: len(waiters(folder)) == MANY, timeout_s=120)
    yield folder
    for worker in (relay, holder):
        worker.end()


@pytest.fixture
def last(line):
    """Take the place behind them, for a waiter that could use the GPUs that it names."""
    made = []

    def take(*uuids):
        demand = Demand(uuids=uuids)
        made.append(_Place(line, never, demand=demand, script="a", group=None, deadline_s=2.0, on_problem=print))
        made[-1].look()
        return made[-1]

    yield take
    for place in made:
        place.give_up()


@pytest.mark.parametrize(
    ("uuids", "rivals", "may_be_served"),
    [
        pytest.param(["GPU-0"], MANY, False, id="a change is nothing while many rivals wait"),
        pytest.param(["GPU-1"], 0, True, id="waiters for other GPUs are no rivals"),
        pytest.param(["GPU-0", "GPU-1"], 0, True, id="who could use more than those ahead looks at each change"),
    ],
)
def test_only_those_count_who_can_use_all_that_one_could(last, uuids, rivals, may_be_served):
    place = last(*uuids)
    assert (place.rivals, place.may_be_served()) == (rivals, may_be_served)


def test_a_folder_that_can_not_be_read_is_reported_as_such(last, monkeypatch):
    place = last("GPU-0")

    def no_more_files(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "listdir", no_more_files)
    with pytest.raises(Uncoordinated, match="Too many open files"):
        place.may_be_served()


def test_who_comes_near_pauses_no_longer_than_who_is_far_and_no_one_beyond_the_bound(folder):
    place = _Place(folder, never, demand=Demand(), script="a", group=None, deadline_s=2.0, on_problem=print)
    pauses, rests = [], []
    for place.rivals in range(1000):
        pauses.append(place.courtesy_s)
        rests.append(place.pause_s(QueueState(place.rivals + 1, (), (), 0.0, 0.0, 1), is_blind=False))
    for waits in (pauses, rests):
        assert waits == sorted(waits)
    assert pauses[-1] == _LONGEST_PAUSE_S
    assert rests[-1] < _LONGEST_REST_S + 0.1


@pytest.mark.slow
def test_events_that_are_nothing_to_it_neither_end_a_rest_nor_prolong_the_wait(line, last):
    place = last("GPU-0")
    with Watch(line.path, place.is_concerned) as watch:
        for place.rivals, wait_s in ((MANY, 0.7), (4000, 0.3)):
            begun_s = time.monotonic()
            (line.path / "job.1.1.00000000").touch()
            (line.path / "job.1.1.00000000").unlink()
            assert not _wait_until(begun_s + wait_s, watch, place)
            assert wait_s <= time.monotonic() - begun_s < _LONGEST_PAUSE_S


def test_a_folder_that_was_made_anew_is_watched(folder, path):
    with Watch(folder.path, lambda name: True) as watch:
        path.rename(path.parent / "gone")
        assert watch.wait(10)
        path.mkdir()
        assert not watch.wait(0.1)
        (path / "job.1.1.00000000").touch()
        assert watch.wait(10)


@pytest.mark.slow
def test_who_waits_for_the_mutex_shows_that_it_is_running(folder, start):
    acquire_lease(folder, never, script="a")
    start().ask("hold_mutex")
    beats = []
    with mutex.held_if_possible(folder, 1.0, lambda: beats.append(time.monotonic())) as (_, problem):
        assert problem is not None
    assert len(beats) >= 2


@pytest.mark.slow
def test_rivals_that_have_ended_or_are_stopped_do_not_count(line, last):
    place = last("GPU-0")
    ahead = [waiter.pid for waiter in waiters(line) if waiter.pid != os.getpid()]
    # No more than so many may be left, so both kinds have to go.
    for pid, end in zip(ahead[: MANY - _NEAR], [signal.SIGKILL, signal.SIGSTOP] * MANY):
        os.kill(pid, end)
    until(place.may_be_served)
