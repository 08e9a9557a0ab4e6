"""PyTorch and JAX with autogpu on a real driver: judged by the memory that NVML shows, and by the leases."""

import json
import os
import sys

import pytest

from tests.gpu.conftest import answer, needs_driver
from tests.gpu.jobs import go_on, used_bytes
from tests.support.framework_jobs import AT_ONCE, FILL, HOLD

pytestmark = [pytest.mark.gpu, needs_driver, pytest.mark.timeout(900), pytest.mark.xdist_group("gpu")]

GIB = 1 << 30


def test_job_claims_the_gpu_that_it_uses_at_its_first_use(jobs, framework):
    job = jobs.start(AT_ONCE[framework])
    assert job.stdout.readline() == "imported\n"
    assert (jobs.claims(), jobs.taken()) == ({}, {}), "an import makes no context"
    go_on(job)
    assert job.stdout.readline().startswith("ready cuda:0")
    taken = jobs.taken()
    assert jobs.claims() == {job.pid: sorted(taken)}
    assert len(taken) == 1
    assert sum(taken.values()) < 4 * GIB, "a small array, a context and its libraries"
    environ = {**os.environ, "AUTOGPU_LEASE_DIR": str(jobs.leases)}
    status = json.loads(answer(sys.executable, "-m", "autogpu", "status", "--json", environ=environ))
    [shown] = [each for gpu in status["gpus"] for each in gpu["jobs"]]
    assert (shown["pid"], shown["script"]) == (job.pid, "job0.py")


def test_limit_is_a_hard_cap(jobs, framework):
    out, errors = jobs.start(FILL[framework], AUTOGPU_LIMIT="2GiB").communicate(timeout=240)
    word, count = out.split() or ("", "0")
    assert word == "OutOfMemoryError", errors
    assert 4 <= int(count) <= 8, "pieces of 256 MiB"


def test_job_with_count_0_runs_on_the_cpu(jobs, framework):
    job = jobs.start(HOLD[framework], AUTOGPU_COUNT="0")
    assert job.stdout.readline().startswith("ready cpu")
    assert (jobs.claims(), jobs.taken()) == ({}, {})


def test_switched_off_autogpu_claims_nothing_and_hides_no_gpu(jobs, framework):
    job = jobs.start(HOLD[framework], AUTOGPU="0")
    assert job.stdout.readline() == f"ready cuda:0 {len(used_bytes())}\n"
    assert jobs.claims() == {}
