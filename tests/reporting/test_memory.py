"""The sentences about the cap of a best-effort job, and about the memory that it could reserve."""

import pytest

from autogpu.reporting.choice import why
from autogpu.selection.model import LastRuns
from autogpu.text import GIB
from tests.support.selections import claim, decided
from tests.support.values import gpu


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        pytest.param({}, "to reserve 6 GiB: AUTOGPU_NEED=6GiB", id="without-need"),
        pytest.param(
            {"need_bytes": 20 * GIB, "wait_s": 0.0}, "no memory is reserved: less than 20.0 GiB was left", id="need"
        ),
        pytest.param(
            {"last_runs": {gpu(0).name: LastRuns("a.py", 9 * GIB)}},
            "to reserve 9 GiB: AUTOGPU_NEED=9GiB",
            id="last-runs",
        ),
    ],
)
def test_sentence_of_a_best_effort_job_states_its_cap_and_reservation(asked, expected):
    full = gpu(0, used_gib=14, pids=[7])
    text = why(decided(full, **asked), with_cap=True)
    assert text.startswith(f"the only one here; memory limited by other jobs; {expected}; shared: ")
    assert "limited" not in why(decided(gpu(0), **asked), with_cap=True)


@pytest.mark.parametrize(
    ("gpus", "asked", "where"),
    [
        pytest.param([gpu(0, used_gib=14, pids=[7])], {}, "", id="one"),
        pytest.param([gpu(0, used_gib=14, pids=[7]), gpu(1)], {"count": 2}, " on GPU 0", id="of-two"),
    ],
)
def test_sentence_of_a_best_effort_job_has_its_cap_beside_reservations(gpus, asked, where):
    stated = {"held": {0: claim(20)}}
    decision = decided(*gpus, wait_s=0.0, **stated, **asked)
    assert decision.caps[gpus[0].uuid].bytes == 7 * GIB // 2
    assert f"; memory limited by other jobs to 3.5 GiB{where}; to reserve 6 GiB: " in why(decision, with_cap=True)
