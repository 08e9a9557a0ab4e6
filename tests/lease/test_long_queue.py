"""Those far behind in the queue: they look rarely, and not too rarely."""

from __future__ import annotations

import time
from contextlib import closing

import pytest

from autogpu.frozen import replace
from autogpu.lease import Demand, Lease
from autogpu.lease.queue import _LONGEST_REST_S, _NEAR, Watch, _Place, _wait_until
from tests.lease.conftest import waiters


def never(holders, ahead):
    return None


@pytest.fixture
def place(folder):
    made = _Place(Lease(folder, "a"), never, Demand())
    made.look()
    yield made
    made.release()


def test_who_is_near_lets_those_ahead_look_first_and_who_is_far_looks_rarely_but_in_time(place):
    courtesies, rests = [], []
    for place.ahead in ((None,) * count for count in range(1000)):
        courtesies.append(place.courtesy_s)
        rests.append(place.pause_s)
    assert (courtesies, rests) == (sorted(courtesies), sorted(rests))
    assert courtesies[_NEAR] < 0.2
    assert rests[-1] < _LONGEST_REST_S + 0.1


@pytest.mark.slow
@pytest.mark.parametrize(("count", "is_woken"), [(_NEAR, True), (_NEAR + 1, False)])
def test_a_change_is_nothing_to_who_has_many_ahead(folder, place, count, is_woken):
    place.ahead = (replace(waiters(folder)[0], name="wait.1.1.00000000"),) * count
    with closing(Watch(folder.path)) as watch:
        (folder.path / "job.1.1.00000000").touch()
        (folder.path / "job.1.1.00000000").unlink()
        begun_s = time.monotonic()
        assert _wait_until(begun_s + 0.7, watch, place) is is_woken
        assert (time.monotonic() - begun_s < 0.7) is is_woken


def test_a_folder_that_was_made_anew_is_watched(folder, path):
    with closing(Watch(folder.path)) as watch:
        path.rename(path.parent / "gone")
        assert watch.wait(10)
        path.mkdir()
        assert not watch.wait(0.1)
        (path / "job.1.1.00000000").touch()
        assert watch.wait(10)
        (path / "wait.1.1.00000000").touch()
        assert not watch.wait(0.1)
        (path / "wait.1.1.00000000").unlink()
        assert watch.wait(10)
