"""The place of a process among the workers that one call has started."""

from __future__ import annotations

import pytest

from autogpu.selection.ranks import WORKERS, LocalRank
from autogpu.selection.workers import worker_rank, workers_of

FOUR = workers_of("", 4, 3, "workers.7.ab").text
BELOW = workers_of("SpawnProcess-2", 2, 1, "workers.8.cd").text


def rank(place, count, job):
    return LocalRank(place, count, WORKERS, job=job)


@pytest.mark.parametrize(
    ("left", "name", "expected"),
    [
        (FOUR, "SpawnProcess-3", rank(0, 4, "workers.7.ab")),
        (FOUR, "ForkProcess-6", rank(3, 4, "workers.7.ab")),
        (BELOW, "SpawnProcess-2:1", rank(0, 2, "workers.8.cd")),
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
def test_a_worker_knows_its_place_by_its_name(left, name, expected):
    assert worker_rank(left, name) == expected


def test_one_worker_alone_has_no_siblings():
    assert worker_rank(workers_of("", 1, 1, "w").text, "SpawnProcess-1").share(4) == (range(4), 1)
