"""Sentences that a script prints."""

from __future__ import annotations

import pytest

from autogpu.reporting.messages import few_replicas, not_held
from tests.support.selections import claim, decided
from tests.support.values import gpu


@pytest.mark.parametrize(
    ("per_user", "held", "end"),
    [
        pytest.param(0, {}, "for more: AUTOGPU_COUNT=3", id="free-ones"),
        pytest.param(1, {}, "no more can be had now: limits.per_user allows 1, all your jobs together", id="cap"),
        pytest.param(1, {1: claim(24), 2: claim(24)}, "no more can be had now", id="all-taken"),
        pytest.param(2, {}, "for more: AUTOGPU_COUNT=2", id="below-the-cap"),
    ],
)
def test_a_strategy_with_few_replicas_is_told_what_stands_in_the_way(per_user, held, end):
    decision = decided(gpu(0), gpu(1), gpu(2), per_user=per_user, held=held)
    (line,) = few_replicas("MirroredStrategy", 1, decision, per_user)
    assert line == f"MirroredStrategy has 1 replica, on 1 of 3 GPUs; {end}"


def test_of_gpus_to_hold_those_that_are_shared_are_named_and_the_remedy_where_it_helps():
    busy = decided(gpu(0), held={0: claim(24, age_s=60)}, wait_s=0)
    assert not_held(busy.devices, busy) == "; not reserved: others may join. To wait for a free GPU: --busy wait"
    idle = decided(gpu(0), gpu(1), gpu(2), held={0: claim(24, age_s=3600), 2: claim(24, age_s=3600)}, count=3)
    shared = [device for device in idle.devices if device.index != 1]
    assert not_held(shared, idle) == "; GPU 2 and GPU 0 not reserved: others may join"
