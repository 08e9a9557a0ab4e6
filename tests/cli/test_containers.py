"""Jobs in containers, as the kernel sees them: namespaces of their own for mounts and processes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.gpusim import Gpu, Server
from tests.support.containers import CONTAINER, NO_NAMESPACES, PRIVATE, SHARED

HOLD = [sys.executable, "-m", "autogpu", "run", "--hold", "--", sys.executable, "-c", "input()"]

pytestmark = pytest.mark.skipif(bool(NO_NAMESPACES), reason=NO_NAMESPACES)


@pytest.fixture
def server(tmp_path, lease_folder):
    (tmp_path / "server").mkdir()
    with Server([Gpu(), Gpu()], folder=tmp_path / "server") as running:
        yield running


@pytest.fixture
def start(server):
    """Start a job that holds a GPU; returns the GPU that its first line names."""
    jobs = []

    def start(*container):
        pipes = dict.fromkeys(("stdin", "stderr"), subprocess.PIPE)
        job = server.popen([*container, "sh", *HOLD] if container else HOLD, **pipes)
        jobs.append(job)
        return job.stderr.readline().split(" for ")[0]

    yield start
    for job in jobs:
        job.communicate("\n", timeout=60)


def test_containers_that_share_the_folder_take_different_gpus(start, server):
    assert [start(), start(*CONTAINER, SHARED)] == ["autogpu: GPU 1", "autogpu: GPU 0"]
    # Inside a third, status shows both, by their claims: pids of other namespaces mean nothing there.
    status = [sys.executable, "-m", "autogpu", "status", "--json"]
    done = server.run([*CONTAINER, SHARED, "sh", *status])
    assert done.stdout.count('"claim_bytes": 25769803776') == 2, done.stdout


def test_containers_with_a_folder_each_do_not_see_each_other(start):
    taken = [start(*CONTAINER, PRIVATE), start(*CONTAINER, PRIVATE), start()]
    assert taken == ["autogpu: GPU 1"] * 3
