"""Servers with unhealthy GPUs: the choice for a job, and the problems that the commands report."""

import pytest

from tests.gpusim import Gpu

pytestmark = pytest.mark.timeout(600)

USE = "import tensorflow as tf\ntf.random.uniform((2, 2))\nprint('done')\n"


def a100(**fields):
    return Gpu(name="NVIDIA A100-SXM4-40GB", memory="40GiB", compute_capability="8.0", ecc=True, **fields)


FAILED = {"health": ["row_remapping_failed"]}
WAITS = {"health": ["row_remapping_pending"]}
ERRORS = {"uncorrected_errors": 2}


@pytest.mark.tensorflow
def test_unhealthy_gpu_is_avoided_or_its_problem_is_reported(train):
    # If both were healthy, GPU 1 would be chosen.
    run = train(a100(), a100(**FAILED))
    ran = run(USE)
    assert (ran.stdout, ran.contexts) == ("done\n", [0]), ran.stderr
    ran = run(USE, CUDA_VISIBLE_DEVICES="1")
    assert ran.contexts == [1]
    assert "not healthy, tell the administrator: GPU 1: row remapping failed" in ran.said[1]


@pytest.mark.slow
def test_commands_report_the_problems_of_unhealthy_gpus(lab):
    autogpu = lab(a100(), a100(**WAITS), a100(**ERRORS))
    assert autogpu.pick("--count", "all") == [0, 2, 1]
    problems = [gpu["health_problems"] for gpu in autogpu.status()["gpus"]]
    waiting, errors = "row remapping pending until a reset", "2 uncorrectable memory errors since boot"
    assert problems == [[], [waiting], [errors]]
    page = autogpu("status").stdout
    assert all(words in page for words in (waiting, errors))
    doctor = autogpu("doctor").stdout
    assert f"GPU 1: {waiting}; GPU 2: {errors}" in " ".join(doctor.split())


@pytest.mark.tensorflow
def test_gpu_that_falls_off_the_bus_after_the_import_is_not_chosen(host):
    # The list that autogpu wrote at the import begins with the GPU that is lost later.
    waits = "import sys, tensorflow\nprint('imported', flush=True)\nsys.stdin.read()\n"
    start = host(a100(), a100(), script=waits + USE)
    job = start()
    assert job.ready() == "imported"
    start.server.change(1, nvml="GPU_IS_LOST")
    assert job.end()[0] == 0
    assert job.gpus() == [0]
