"""A framework that is told to go without GPUs, as TensorFlow for ``tf.data`` alone, says nothing of the next one."""

from __future__ import annotations

import pytest

from tests.gpusim import Gpu
from tests.support import framework_environments
from tests.support.framework_jobs import becomes_true
from tests.support.framework_machines import BUSY

FOUR = (BUSY, Gpu(), Gpu(), Gpu())

pytestmark = [pytest.mark.framework, pytest.mark.timeout(600), pytest.mark.xdist_group("keras")]

WITHOUT = """
import tensorflow as tf
tf.config.set_visible_devices([], "GPU")
assert len(list(tf.data.Dataset.range(3).as_numpy_iterator())) == 3
"""
WITH = {
    "jax": "import jax\nx = jax.numpy.ones(3)\nprint('ready', *x.devices(), jax.local_device_count(), flush=True)\n",
    "torch": "import torch\nx = torch.ones(3, device='cuda')\nprint('ready', x.device, flush=True)\n",
}
WAITS = "import sys\nsys.stdin.readline()\n"


@pytest.fixture(scope="module")
def all_three():
    return framework_environments.keras_with_autogpu()


@pytest.mark.parametrize("framework", WITH)
@pytest.mark.parametrize("imported", ["first", "second"])
def test_the_next_one_gets_the_idlest_and_claims_it(all_three, machine_of, framework, imported):
    before = f"import {framework}\n" if imported == "first" else ""
    machine = machine_of(all_three, *FOUR)
    job = machine.start(before + WITHOUT + WITH[framework] + WAITS, TF_CPP_MIN_LOG_LEVEL="3")
    assert job.line() == {"jax": "ready cuda:0 1", "torch": "ready cuda:0"}[framework]
    assert job.contexts == [3]
    assert becomes_true(lambda: machine.claims() == {job.pid: [3]}, within_s=20), machine.claims()
    job.go_on()
    ran = job.end()
    assert (ran.exit_status, len(ran.said)) == (0, 1), ran.said


@pytest.mark.parametrize("framework", WITH)
def test_two_such_jobs_get_a_gpu_each(all_three, machine_of, framework):
    machine = machine_of(all_three, *FOUR)
    script = f"import {framework}\n" + WITHOUT + WITH[framework] + WAITS
    jobs = [machine.start(script, TF_CPP_MIN_LOG_LEVEL="3") for _ in range(2)]
    assert all(job.line().startswith("ready") for job in jobs)
    assert sorted(job.contexts for job in jobs) == [[2], [3]]


def test_a_job_without_gpus_says_nothing_and_claims_nothing(all_three, machine_of):
    machine = machine_of(all_three, *FOUR)
    job = machine.start(WITHOUT + "print('ready', flush=True)\n" + WAITS, TF_CPP_MIN_LOG_LEVEL="3")
    assert job.line() == "ready"
    assert machine.claims() == {}
    job.go_on()
    ran = job.end()
    assert (ran.exit_status, ran.contexts, ran.said) == (0, [], [])
