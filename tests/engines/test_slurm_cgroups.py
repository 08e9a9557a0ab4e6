"""Jobs in a real Slurm that uses cgroups to deny them the GPUs of other jobs."""

import json

import pytest

from tests.engines import slurm
from tests.gpusim import Gpu

CAUSE = slurm.missing() or slurm.missing_for_cgroups()
pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(CAUSE), reason=f"no Slurm with device cgroups: {CAUSE}"),
]

ALIKE = [Gpu()] * 4
# CUDA's order begins with the fastest GPU: 3, 2, 1, 0.
MIXED = [Gpu(name=f"NVIDIA Model {speed}", speed=speed) for speed in (1, 2, 3, 4)]

TWO_GPUS = ["--gres=gpu:2"]


@pytest.fixture(params=["refuse", "omit"])
def constrained(clusters, request):
    """Yield a cluster on which another job holds GPUs 0 and 1."""
    cluster = clusters(ALIKE, denied=request.param)
    with cluster.kept_from_others(*TWO_GPUS):
        yield cluster


@pytest.mark.parametrize("denied", ["refuse", "omit"])
@pytest.mark.parametrize("gpus", [ALIKE, MIXED], ids=["alike", "mixed"])
@pytest.mark.parametrize("count", ["1", "all"])
def test_job_has_contexts_only_on_its_granted_gpus(clusters, denied, gpus, count):
    done = clusters(gpus, denied=denied).run(*TWO_GPUS, kept=TWO_GPUS, environ={"AUTOGPU_COUNT": count})
    (taken,) = done.taken
    assert set(taken) <= {2, 3}, done.stderr
    assert list(taken.values()) == ["whole"] * (2 if count == "all" else 1), done.stderr


@pytest.mark.tensorflow
def test_tensorflow_has_contexts_only_on_its_granted_gpus(clusters, tensorflow_python):
    options = {"kept": TWO_GPUS, "python": tensorflow_python, "framework": "tensorflow"}
    done = clusters(MIXED, denied="refuse").run(*TWO_GPUS, environ={"AUTOGPU_COUNT": "all"}, **options)
    assert done.taken == [{2: "whole", 3: "whole"}], done.stderr


@pytest.mark.parametrize(
    "arguments",
    [TWO_GPUS, ["--gpus-per-task=1"], [*TWO_GPUS, "--gpu-bind=none"]],
    ids=["both-gpus-visible", "gpus-per-task", "gpu-bind-none"],
)
def test_two_ranks_can_fill_a_gpu_each(constrained, arguments):
    # With --gpus-per-task each rank has CUDA_VISIBLE_DEVICES=0, but can open a different device.
    done = constrained.run("-n2", *arguments, jobs=2)
    assert done.taken == [{2: "whole"}, {3: "whole"}], done.stderr


@pytest.mark.tensorflow
def test_job_without_gres_has_no_gpu_and_prints_one_line(constrained, tensorflow_python):
    done = constrained.run()
    assert done.taken == [{}], done.stderr
    first, second = done.said
    assert "Slurm granted no GPU here" in first
    assert second == "autogpu: to get a GPU: srun --gres=gpu:1"
    # The checks that ``doctor`` makes with TensorFlow must pass as well.
    autogpu = f"PATH={tensorflow_python.parent}:$PATH; {tensorflow_python} -m autogpu"
    asked = constrained.slurm.run(command=["/bin/sh", "-c", f"{autogpu} status; {autogpu} doctor"])
    assert "would get the CPU: Slurm granted no GPU here" in asked.stdout.replace("\n", " ")
    assert (asked.returncode, "FAILED" in asked.stdout) == (0, False), asked.stdout


@pytest.mark.tensorflow
def test_pick_status_and_doctor_name_the_gpu_that_a_script_gets(constrained, tensorflow_python):
    commands = ["pick --format uuid", "status --json", "doctor --json"]
    autogpu = f"PATH={tensorflow_python.parent}:$PATH {tensorflow_python} -m autogpu"
    script = ['"$@"', *(f"echo $({autogpu} {command})" for command in commands)]
    done = constrained.run(*TWO_GPUS, before=["/bin/sh", "-c", "\n".join(script), "sh"])
    uuids = [gpu.uuid for gpu in constrained.servers[0].gpus]
    (chosen,) = [uuids[gpu] for taken in done.taken for gpu in taken]
    pick, status, doctor = done.stdout.splitlines()
    assert pick == chosen, done.stderr
    status = json.loads(status)
    assert status["preview"]["uuids"] == [chosen]
    assert (status["failure"], status["unreadable"]) == (None, [])
    assert {gpu["uuid"] for gpu in status["gpus"]} == set(uuids[2:])
    assert [each for each in json.loads(doctor)["findings"] if each["state"] == "failed"] == []


def test_run_hold_claims_one_of_the_granted_gpus(constrained):
    done = constrained.run(*TWO_GPUS, before=[str(constrained.python), "-m", "autogpu", "run", "--hold", "--"])
    (taken,) = done.taken
    assert list(taken.values()) == ["whole"]
    assert set(taken) <= {2, 3}
