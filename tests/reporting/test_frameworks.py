"""The sentences about a framework that has fewer GPUs than its script expects, or uses more than it claimed."""

import pytest

from autogpu.frozen import replace
from autogpu.reporting.frameworks import few_replicas, spreading
from tests.support.selections import claim, decided
from tests.support.values import gpu


@pytest.mark.parametrize(
    ("per_user", "held", "end"),
    [
        pytest.param(0, {}, "for more GPUs: AUTOGPU_COUNT=3", id="free-ones"),
        pytest.param(1, {}, "no more GPUs now: limits.per_user allows 1 for all your jobs", id="cap"),
        pytest.param(1, {1: claim(24), 2: claim(24)}, "no more GPUs now", id="all-taken"),
        pytest.param(2, {}, "for more GPUs: AUTOGPU_COUNT=2", id="below-the-cap"),
    ],
)
def test_line_about_few_replicas_states_if_the_job_can_get_more_gpus(per_user, held, end):
    decision = decided(gpu(0), gpu(1), gpu(2), per_user=per_user, held=held)
    (line,) = few_replicas("MirroredStrategy", 1, decision, per_user)
    assert line == f"MirroredStrategy has 1 replica, on 1 of 3 GPUs; {end}"


def test_line_about_gpus_used_without_a_claim_leaves_out_those_of_the_job():
    decision = replace(decided(gpu(0), gpu(1), gpu(2)), of_ranks=(gpu(1).uuid,))
    others = "also uses GPU 0, which this process has not claimed"
    assert spreading("DataParallel", decision) == [f"DataParallel {others}; to use GPU 2 alone: AUTOGPU_VISIBLE=chosen"]
    assert spreading("DataParallel", decided(gpu(0), gpu(1), count="all")) == []
