"""Those far behind in the queue: they look rarely, and not too rarely."""

from __future__ import annotations

import errno
import os
import signal
import time

import pytest

from autogpu.lease import Demand, Uncoordinated, acquire_lease, mutex, wait_for_lease
from autogpu.lease.inotify import Watch
from autogpu.lease.queue import _LONGEST_PAUSE_S, _LONGEST_REST_S, _NEAR, _Place, _wait_until
from tests.lease.conftest import until, waiters

MANY = _NEAR + 4


def never(holders, ahead):
    return None


@pytest.fixture
def last(folder, start):
    """Take the place behind ``MANY`` waiters for GPU-0, for a waiter that could use the GPUs that it names."""
    holder, relay = start(), start()
    holder.ask("acquire", free=["GPU-0"])
    relay.tell("relay", count=MANY, uuids=["GPU-0"], timeout_s=240)
    until(lambda: len(waiters(folder)) == MANY, timeout_s=120)
    made = []

    def take(*uuids):
        demand = Demand(uuids=uuids)
        place = _Place(folder, never, demand=demand, script="a", group=None, deadline_s=2.0, on_problem=print)
        made.append(place)
        place.look()
        return place

    yield take
    for place in made:
        place.give_up()
    for waiter in waiters(folder):
        os.kill(waiter.pid, signal.SIGKILL)


def test_a_change_is_nothing_while_many_rivals_wait(last):
    place = last("GPU-0")
    assert place.rivals == MANY
    assert not place.may_be_served()


def test_waiters_for_other_gpus_are_no_rivals(last):
    place = last("GPU-1")
    assert place.rivals == 0
    assert place.may_be_served()


def test_who_could_use_more_than_those_ahead_looks_at_each_change(last):
    assert last("GPU-0", "GPU-1").may_be_served()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
def test_rivals_that_have_ended_or_are_stopped_do_not_count(folder, last, end):
    place = last("GPU-0")
    ahead = [waiter.pid for waiter in waiters(folder) if waiter.pid != os.getpid()]
    for pid in ahead:
        os.kill(pid, end)
    until(place.may_be_served)
    for pid in ahead if end == signal.SIGSTOP else ():
        os.kill(pid, signal.SIGCONT)


def test_a_folder_that_can_not_be_read_is_reported_as_such(last, monkeypatch):
    place = last("GPU-0")

    def no_more_files(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "listdir", no_more_files)
    with pytest.raises(Uncoordinated, match="Too many open files"):
        place.may_be_served()


def test_who_comes_near_pauses_no_longer_than_who_is_far(last):
    place, pauses = last("GPU-0"), []
    for rivals in range(1000):
        place.rivals = rivals
        pauses.append(place.courtesy_s)
    assert pauses == sorted(pauses)
    assert pauses[-1] == _LONGEST_PAUSE_S


def test_no_one_rests_longer_than_the_bound(last):
    place = last("GPU-0")
    _, state = place.look()
    for place.rivals in (_NEAR + 1, 100, 4000):
        assert place.pause_s(state, is_blind=False) < _LONGEST_REST_S + 0.1


def test_events_that_are_nothing_to_it_do_not_end_a_rest(folder, path, last):
    place = last("GPU-0")
    with Watch(folder.path, place.is_concerned) as watch:
        begun_s = time.monotonic()
        (path / "job.1.1.00000000").touch()
        (path / "job.1.1.00000000").unlink()
        assert not _wait_until(begun_s + 0.7, watch, place)
        assert time.monotonic() - begun_s >= 0.7


def test_a_change_within_the_last_moment_does_not_prolong_the_wait(folder, last):
    place = last("GPU-0")
    place.rivals = 4000
    with Watch(folder.path, place.is_concerned) as watch:
        begun_s = time.monotonic()
        (folder.path / "job.1.1.00000000").touch()
        _wait_until(begun_s + 0.3, watch, place)
        assert time.monotonic() - begun_s < _LONGEST_PAUSE_S


def test_a_folder_that_was_made_anew_is_watched(folder, path):
    with Watch(folder.path, lambda name: True) as watch:
        path.rename(path.parent / "gone")
        assert watch.wait(10)
        path.mkdir()
        assert not watch.wait(0.1)
        (path / "job.1.1.00000000").touch()
        assert watch.wait(10)


def test_who_waits_for_the_mutex_shows_that_it_is_running(folder, start):
    acquire_lease(folder, never, script="a")
    other = start()
    other.ask("hold_mutex")
    beats = []
    with mutex.held_if_possible(folder, 1.0, lambda: beats.append(time.monotonic())) as (_, problem):
        assert problem is not None
    assert len(beats) >= 2


def test_the_end_of_the_time_is_told_with_those_ahead(folder, last):
    last()
    with pytest.raises(Exception, match=f"{MANY + 1} ahead in the queue"):
        wait_for_lease(folder, never, demand=Demand(), script="a", timeout_s=0.1)
