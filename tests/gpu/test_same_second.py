"""PyTorch and JAX jobs that request a GPU in the same second, on a real driver."""

from select import select

import pytest

from tests.gpu.conftest import needs_driver
from tests.gpu.jobs import go_on, used_bytes
from tests.support.framework_jobs import AT_ONCE

pytestmark = [pytest.mark.gpu, needs_driver, pytest.mark.timeout(900), pytest.mark.xdist_group("gpu")]


def all_at_once(jobs, framework, count, **environ):
    """Start ``count`` jobs. Wait until each has imported its framework, and then let all go on at once."""
    several = [jobs.start(AT_ONCE[framework], **environ) for _ in range(count)]
    for job in several:
        assert job.stdout.readline() == "imported\n"
    for job in several:
        go_on(job)
    return several


def test_job_that_finds_no_free_gpu_is_refused(jobs, framework):
    gpus = sorted(used_bytes())
    several = all_at_once(jobs, framework, len(gpus) + 1, AUTOGPU_BUSY="error")
    ready = [job for job in several if job.stdout.readline().startswith("ready cuda:0")]
    assert len(ready) == len(gpus)
    assert sorted(jobs.claims().values()) == [[uuid] for uuid in gpus]
    assert sorted(jobs.taken()) == gpus
    [refused] = [job for job in several if job not in ready]
    assert "NoEligibleDevice" in refused.communicate(timeout=240)[1]


def test_waiting_job_gets_the_gpu_of_the_job_that_ends(jobs, framework):
    gpus = sorted(used_bytes())
    waiting = all_at_once(jobs, framework, len(gpus) + 1, AUTOGPU_BUSY="wait", AUTOGPU_WAIT="200s")
    by_output = {job.stdout: job for job in waiting}
    for _ in gpus:
        [output, *_] = select(list(by_output), [], [], 240)[0]
        assert output.readline().startswith("ready cuda:0")
        first = by_output.pop(output)
    [last] = by_output.values()
    claims = jobs.claims()
    assert sorted(claims.values()) == [[uuid] for uuid in gpus]
    assert any("waiting for" in line for line in last.stderr), "the job did not wait"
    first.communicate(timeout=240)
    assert last.stdout.readline().startswith("ready cuda:0")
    assert jobs.claims()[last.pid] == claims[first.pid]
