"""A process may die, or be interrupted, at every line of ours."""

from __future__ import annotations

import random
import sys
import time

import pytest

from autogpu.lease import acquire_lease, mutex
from autogpu.lease.snapshot import FolderReader
from tests.lease.conftest import holders

# A wait goes through hundreds of lines, most of them twice.
STEP = {"wait": 4}


@pytest.mark.parametrize("what", ["claim", "update", "wait", "timeout"])
def test_death_at_every_line_leaves_nothing_that_counts(start, what):
    told = start().ask("die_everywhere", what=what, step=STEP.get(what, 1))

    print(f"\n{what}: {told}")
    assert set(told) == {"lines"}
    assert told["lines"] > 30


@pytest.mark.parametrize("what", ["claim", "update", "wait"])
def test_ctrl_c_at_every_line_frees_the_mutex_and_loses_no_lease(start, what):
    told = start().ask("interrupt_everywhere", what=what, step=STEP.get(what, 1))

    print(f"\n{what}: {told['lines']} lines")
    assert told["problems"] == []


def test_death_at_any_moment_leaves_nothing_that_counts(folder, start, path):
    chance = random.Random(4)
    begin = time.monotonic()
    rounds = 0
    while rounds < 50 and time.monotonic() - begin < 20:
        rounds += 1
        worker = start()
        worker.tell("threads", gpus={"GPU-0": 1}, count=200)
        time.sleep(chance.uniform(0, 0.03))
        worker.kill()
        assert holders(folder) == ()
        assert acquire_lease(folder, lambda *_: None, script="a", deadline_s=0.5) is None
        assert [found.name for found in path.iterdir()] == ["mutex"]
    assert rounds > 10


def test_others_that_tidy_up_while_a_lease_is_made_stop_it_as_little_as_they_like(folder):
    lease = acquire_lease(folder, lambda *_: {"GPU-0": 1}, script="a")
    lines = 0

    def tidy_up(frame, event, argument):
        """Before each line of ours that makes the file: any number of others may be on another processor."""
        nonlocal lines
        if frame.f_code.co_name != "_try_put":
            return None
        if event == "line" and lines < 300:
            lines += 1
            sys.settrace(None)
            with mutex.held(folder) as descriptor:
                FolderReader(folder).read(descriptor, remove_stale=True)
            sys.settrace(tidy_up)
        return tidy_up

    sys.settrace(tidy_up)
    try:
        lease.update({"GPU-0": 2})
    finally:
        sys.settrace(None)
    assert lines > 100, "no attempt was lost"
    assert [dict(holder.claims) for holder in holders(folder)] == [{"GPU-0": 2}]
