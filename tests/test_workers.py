"""What a program leaves to the workers that it starts by one call, and the place that each finds among them."""

from __future__ import annotations

import pytest

from autogpu.selection.grants import NO_ENGINE
from autogpu.selection.ranks import WORKERS, LocalRank
from autogpu.selection.workers import worker_rank, workers_of
from autogpu.variables import WORKERS as LEFT
from autogpu.workers import Workers

FOUR = workers_of("", 4, 3, "workers.7.ab").text
BELOW = workers_of("SpawnProcess-2", 2, 1, "workers.8.cd").text


@pytest.mark.parametrize(
    ("left", "name", "place"),
    [
        (FOUR, "SpawnProcess-3", 0),
        (FOUR, "ForkProcess-6", 3),
        (BELOW, "SpawnProcess-2:1", 0),
        # Started before or after these, by a worker of theirs, or by no multiprocessing at all.
        (FOUR, "SpawnProcess-2", None),
        (FOUR, "SpawnProcess-7", None),
        (FOUR, "Process-3:3", None),
        (BELOW, "SpawnProcess-1", None),
        (FOUR, "", None),
        (FOUR, "SyncManager", None),
        (None, "SpawnProcess-3", None),
        ("v2/4/3//x", "SpawnProcess-3", None),
        ("v1/4/3//" + "x" * 100, "SpawnProcess-3", None),
        ("", "SpawnProcess-3", None),
    ],
)
def test_a_worker_knows_its_place_by_its_name(left, name, place):
    count, job = (4, "workers.7.ab") if left is FOUR else (2, "workers.8.cd")
    assert worker_rank(left, name) == (None if place is None else LocalRank(place, count, WORKERS, job=job))


def test_one_worker_alone_has_no_siblings():
    assert worker_rank(workers_of("", 1, 1, "w").text, "SpawnProcess-1").share(4) == (range(4), 1)


def test_what_is_left_ends_with_the_call_and_says_nothing_to_its_caller():
    environ = {}
    program = Workers(environ, lambda: "")
    program.begin(2, 1)
    assert (program.ranked(NO_ENGINE), list(environ)) == (NO_ENGINE, [LEFT])
    program.end()
    assert environ == {}


def test_processes_of_a_program_that_a_worker_starts_are_none_of_the_workers():
    environ = {}
    Workers(environ, lambda: "").begin(2, 1)
    worker = Workers(environ, lambda: "SpawnProcess-2")
    assert worker.ranked(NO_ENGINE).rank.rank == 1
    assert Workers(dict(environ), lambda: "SpawnProcess-1").ranked(NO_ENGINE).rank is None
    # The worker itself stays one, also where an engine is asked again.
    assert worker.ranked(NO_ENGINE).rank.rank == 1
