"""A process may die, or be interrupted, at every line of ours."""

from __future__ import annotations

import random
import time

import pytest

from autogpu.lease import acquire_lease
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
