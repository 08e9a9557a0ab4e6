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


def test_of_gpus_to_hold_those_that_are_shared_are_named():
    assert not_held([gpu(0)], [gpu(0)]).startswith("; not reserved: ")
    assert not_held([gpu(0), gpu(2)], [gpu(0), gpu(1), gpu(2)]).startswith("; GPU 0 and GPU 2 not reserved: ")
