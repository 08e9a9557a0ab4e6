"""Jobs of real TensorFlow in a real Slurm that keeps them from the GPUs of others by cgroups."""

from __future__ import annotations

import json

import pytest

from tests.engines import slurm
from tests.engines.slurm_jobs import said
from tests.gpusim import Gpu

CAUSE = slurm.missing() or slurm.missing_for_cgroups()
pytestmark = [
    pytest.mark.engine,
    pytest.mark.tensorflow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(CAUSE), reason=f"no Slurm with device cgroups: {CAUSE}"),
]

ALIKE = [Gpu()] * 4
# CUDA counts the fastest first: 3, 2, 1, 0.
MIXED = [Gpu(name=f"NVIDIA Model {speed}", speed=speed) for speed in (1, 2, 3, 4)]


@pytest.fixture(params=["refuse", "omit"])
def constrained(clusters, request):
    """Start a cluster on which somebody else has GPUs 0 and 1."""

    def started(gpus=ALIKE):
        cluster = clusters(gpus, denied=request.param)
        cluster.keep_from_others("--gres=gpu:2")
        return cluster

    return started


@pytest.mark.parametrize("gpus", [ALIKE, MIXED], ids=["alike", "mixed"])
@pytest.mark.parametrize("count", ["1", "all"])
def test_a_job_has_contexts_only_on_its_gpus(constrained, gpus, count):
    cluster = constrained(gpus)
    environ = {"AUTOGPU_COUNT": count}
    done = cluster.slurm.run("--gres=gpu:2", command=cluster.fill(), environ=environ)
    (taken,) = cluster.taken(done)
    assert set(taken) <= {2, 3}, said(done)
    assert list(taken.values()) == ["whole"] * (2 if count == "all" else 1), said(done)


@pytest.mark.parametrize(
    "arguments",
    [["--gres=gpu:2"], ["--gpus-per-task=1"], ["--gres=gpu:2", "--gpu-bind=none"]],
    ids=["all-see-all", "gpus-per-task", "no-list"],
)
def test_each_of_two_ranks_may_fill_a_gpu_of_its_own(constrained, arguments):
    # With --gpus-per-task each rank has CUDA_VISIBLE_DEVICES=0, and may open another device.
    cluster = constrained()
    done = cluster.slurm.run("-n2", *arguments, command=cluster.fill())
    assert cluster.taken(done) == [{2: "whole"}, {3: "whole"}], said(done)


def test_a_job_without_gres_has_no_gpu_and_says_so_at_most_once(constrained):
    cluster = constrained()
    done = cluster.slurm.run(command=cluster.fill(1))
    assert cluster.taken(done) == [{}], said(done)
    (line,) = said(done)
    assert "Slurm granted no GPU here; to have one: --gpus-per-task=1 or --gres=gpu:1" in line
    status = cluster.slurm.run(command=[cluster.python, "-m", "autogpu", "status"])
    assert "would get the CPU: Slurm granted no GPU here" in status.stdout.replace("\n", " ")
    path = f"PATH={cluster.python.rsplit('/', 1)[0]}:$PATH"
    doctor = cluster.slurm.run(command=["/bin/sh", "-c", f"{path} {cluster.python} -m autogpu doctor"])
    assert (doctor.returncode, "FAILED" in doctor.stdout) == (0, False), doctor.stdout


def test_the_commands_name_the_gpu_that_a_script_gets(constrained):
    cluster = constrained()
    autogpu = f"{cluster.python} -m autogpu"
    script = f"""
        PATH={cluster.python.rsplit("/", 1)[0]}:$PATH
        {" ".join(cluster.fill(1))}
        echo pick: $({autogpu} pick --format uuid)
        echo status: $({autogpu} status --json)
        echo doctor: $({autogpu} doctor --json)
    """
    done = cluster.slurm.run("--gres=gpu:2", command=["/bin/sh", "-c", script])
    (taken,) = cluster.taken(done)
    uuids = [gpu.uuid for gpu in cluster.servers[0].gpus]
    (chosen,) = [uuids[gpu] for gpu in taken]
    pick, status, doctor = (line.partition(":")[2] for line in done.stdout.splitlines()[-3:])
    assert pick.strip() == chosen, done.stderr
    status = json.loads(status)
    assert status["preview"]["uuids"] == [chosen]
    assert (status["failure"], status["unreadable"]) == (None, [])
    assert {gpu["uuid"] for gpu in status["gpus"]} == set(uuids[2:])
    findings = json.loads(doctor)["findings"]
    assert [each for each in findings if each["state"] == "failed"] == []


def test_a_command_that_holds_a_gpu_runs_on_one_of_the_jobs(constrained):
    cluster = constrained()
    hold = [cluster.python, "-m", "autogpu", "run", "--hold", "--", *cluster.fill()]
    (taken,) = cluster.taken(cluster.slurm.run("--gres=gpu:2", command=hold))
    assert list(taken.values()) == ["whole"]
    assert set(taken) <= {2, 3}
