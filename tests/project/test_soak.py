"""Jobs of two users that come, hold what they claimed and are killed at random: nothing over-promised, nothing left."""

from __future__ import annotations

import fcntl
import json
import shutil
import tempfile
from pathlib import Path

import pytest

from benchmarks import contention_start, soak
from tests.gpusim import Gpu, Server


@pytest.fixture
def folder():
    """One that other users can reach; pytest's own are closed to them."""
    made = Path(tempfile.mkdtemp(prefix="autogpu-soak-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.mark.timeout(180)
def test_jobs_that_come_and_go_are_never_promised_more_than_a_gpu_has(folder):
    result = soak.run(folder, 60, seed=1, limit_s=120)

    assert soak.failures(result) == []
    # A soak in which nothing met would prove nothing.
    assert result["killed"] >= 10
    assert result["got"] >= 20
    assert result["most_promised_bytes"] >= 20 << 30


@pytest.mark.parametrize(
    ("gib", "locked", "over_gib"), [((12, 13), 2, 1), ((12, 12), 2, 0), ((12, 13), 1, 0)], ids=["over", "full", "dead"]
)
def test_the_observer_sees_what_is_promised_beyond_a_gpu(folder, gib, locked, over_gib):
    with Server([Gpu(memory="24GiB")], folder=folder) as server:
        leases = contention_start.lease_folder(folder)
        held = []
        with contention_start.observed(server, folder, leases, 0) as seen:
            for number, size in enumerate(gib):
                name = f"job.0.{number}.00000000"
                held.append((leases / f".{name}").open("w"))
                held[-1].write(json.dumps({"group": name, "gpus": {server.gpus[0].uuid: size << 30}}))
                held[-1].flush()
                if number < locked:
                    fcntl.flock(held[-1], fcntl.LOCK_EX)
                (leases / f".{name}").rename(leases / name)

        assert seen["over_bytes"] == over_gib << 30
        assert len(seen["held_at_end"]) == locked
        for file in held:
            file.close()
