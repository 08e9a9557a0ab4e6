"""What a program leaves to the processes that it starts by one call, and what such a process finds."""

from __future__ import annotations

from autogpu.selection.grants import NO_ENGINE
from autogpu.variables import WORKERS
from autogpu.workers import Workers


def of(environ, name):
    return Workers(environ, lambda: name)


def left_by(name="", count=2, first=1):
    environ = {}
    of(environ, name).begin(count, first)
    return environ


def test_what_is_left_ends_with_the_call():
    environ = {}
    program = of(environ, "")
    program.begin(2, 1)
    assert program.ranked(NO_ENGINE) == NO_ENGINE
    assert list(environ) == [WORKERS]
    program.end()
    assert environ == {}


def test_processes_of_a_program_that_a_worker_starts_are_none_of_the_workers():
    environ = left_by()
    worker = of(environ, "SpawnProcess-2")
    assert worker.ranked(NO_ENGINE).rank.rank == 1
    assert of(dict(environ), "SpawnProcess-1").ranked(NO_ENGINE).rank is None
    # The worker itself stays one, also where an engine is asked again.
    assert worker.ranked(NO_ENGINE).rank.rank == 1
