"""Jobs of two users that come, hold what they claimed and are killed at random: nothing over-promised, nothing left."""

import shutil
import tempfile
from pathlib import Path

import pytest

from benchmarks import soak


@pytest.fixture
def folder():
    """One that other users can reach; pytest's own are closed to them."""
    made = Path(tempfile.mkdtemp(prefix="autogpu-soak-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.mark.thorough
@pytest.mark.timeout(180)
def test_jobs_that_come_and_go_are_never_promised_more_than_a_gpu_has(folder):
    result = soak.run(folder, 60, seed=1, limit_s=120)

    assert soak.failures(result) == []
    # A soak in which nothing met would prove nothing.
    assert result["killed"] >= 10
    assert result["got"] >= 20
    assert result["most_promised_bytes"] >= 20 << 30
