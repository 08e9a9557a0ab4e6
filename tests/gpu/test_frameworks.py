"""PyTorch and JAX with autogpu on a real driver: judged by the memory that NVML shows, and by the leases."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from autogpu.devices import probe
from tests.gpu.conftest import PYTHON, answer, needs_driver
from tests.support.framework_jobs import AT_ONCE, FILL, FRAMEWORKS, HOLD
from tests.support.live_jobs import leases

pytestmark = [pytest.mark.gpu, needs_driver, pytest.mark.timeout(900), pytest.mark.xdist_group("gpu")]

GIB = 1 << 30

# Less than any context, and more than other programs' use changes meanwhile.
NOTICEABLE_BYTES = 64 << 20


def used_bytes():
    """By UUID, the memory that is in use, whoever uses it."""
    inventory = probe.start(os.environ).result(30.0)
    assert inventory is not None
    assert inventory.failure is None
    return {gpu.uuid: gpu.memory_total_bytes - gpu.memory_free_bytes for gpu in inventory.devices}


class Jobs:
    """Scripts that run side by side, with a lease folder of their own."""

    def __init__(self, python, folder):
        self._python = python
        self._folder = folder
        self.leases = folder / "leases"
        self.leases.mkdir()
        self._processes = []
        self._before = used_bytes()

    def start(self, script, **environ):
        file = self._folder / f"job{len(self._processes)}.py"
        file.write_text(script)
        mine = {name: value for name, value in os.environ.items() if not name.startswith(("AUTOGPU", "CUDA_"))}
        everything = {**mine, "AUTOGPU_LEASE_DIR": str(self.leases), **environ}
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        command = [str(self._python), "-W", "ignore", str(file)]
        self._processes.append(subprocess.Popen(command, env=everything, cwd=str(self._folder), text=True, **pipes))
        return self._processes[-1]

    def claims(self):
        """By pid, the GPUs that its lease names."""
        return {lease["pid"]: sorted(lease["gpus"]) for lease in leases(self.leases).values()}

    def taken(self):
        """By UUID, how much more memory is in use than before the first job."""
        now = used_bytes()
        return {uuid: now[uuid] - used for uuid, used in self._before.items() if now[uuid] - used > NOTICEABLE_BYTES}

    def close(self):
        for process in self._processes:
            process.kill()
            process.communicate(timeout=120)


def go_on(job):
    job.stdin.write("\n")
    job.stdin.flush()


@pytest.fixture
def jobs(python, tmp_path):
    made = Jobs(python, tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module", params=FRAMEWORKS)
def framework(request):
    command = [PYTHON, "-c", f"import {request.param}"]
    if subprocess.run(command, stderr=subprocess.DEVNULL, timeout=240, check=False).returncode:
        pytest.skip(f"{PYTHON} has no {request.param}; AUTOGPU_TEST_PYTHON names one that has")
    return request.param


def test_a_job_claims_the_gpu_that_it_uses_when_it_uses_it(jobs, framework):
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


def test_a_limit_is_a_hard_cap(jobs, framework):
    out, errors = jobs.start(FILL[framework], AUTOGPU_LIMIT="2GiB").communicate(timeout=240)
    word, count = out.split() or ("", "0")
    assert word == "OutOfMemoryError", errors
    assert 4 <= int(count) <= 8, "pieces of 256 MiB"


def test_one_job_more_than_gpus_is_refused(jobs, framework):
    gpus = sorted(used_bytes())
    several = [jobs.start(AT_ONCE[framework], AUTOGPU_BUSY="error") for _ in range(len(gpus) + 1)]
    for job in several:
        assert job.stdout.readline() == "imported\n"
    for job in several:
        go_on(job)
    ready = [job for job in several if job.stdout.readline().startswith("ready cuda:0")]
    assert len(ready) == len(gpus)
    assert sorted(jobs.claims().values()) == [[uuid] for uuid in gpus]
    assert sorted(jobs.taken()) == gpus
    [refused] = [job for job in several if job not in ready]
    assert "NoEligibleDevice" in refused.communicate(timeout=240)[1]


def test_without_a_gpu_by_policy_the_job_is_on_the_cpu(jobs, framework):
    job = jobs.start(HOLD[framework], AUTOGPU_COUNT="0")
    assert job.stdout.readline().startswith("ready cpu")
    assert (jobs.claims(), jobs.taken()) == ({}, {})


def test_switched_off_it_is_as_without_it(jobs, framework):
    job = jobs.start(HOLD[framework], AUTOGPU="0")
    assert job.stdout.readline() == f"ready cuda:0 {len(used_bytes())}\n"
    assert jobs.claims() == {}


def test_the_versions_that_were_tried():
    """For the record of what this ran on: shown by ``pytest -rP``."""
    ask = (
        "import importlib.metadata as m\n"
        "for name in ('torch', 'jax', 'jaxlib'):\n"
        "    try: print(name, m.version(name))\n"
        "    except m.PackageNotFoundError: print(name, 'is not there')"
    )
    print(answer(PYTHON, "-c", ask))
    inventory = probe.start(os.environ).result(30.0)
    assert inventory is not None
    print("driver", inventory.driver_version, *(gpu.name for gpu in inventory.devices))
