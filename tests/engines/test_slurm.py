"""Jobs of real TensorFlow in a real Slurm, judged by what they asked the driver."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.engines import slurm
from tests.engines.slurm_jobs import HALF, said
from tests.gpusim import Gpu
from tests.support.live_jobs import claims

pytestmark = [
    pytest.mark.engine,
    pytest.mark.tensorflow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(slurm.missing()), reason=f"no Slurm: {slurm.missing()}"),
]

ONE_EACH = [{gpu: "whole"} for gpu in range(4)]

# CUDA counts the fastest first: 3, 2, 1, 0.
MIXED = [Gpu(name=f"NVIDIA Model {speed}", speed=speed) for speed in (1, 2, 3, 4)]


# ---- ranks ----


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param(["--gpus-per-task=1"], ONE_EACH, id="gpus-per-task"),
        pytest.param(["--gres=gpu:4", "--gpu-bind=single:1"], ONE_EACH, id="bind-single"),
        pytest.param(["--gres=gpu:4", "--gpu-bind=map_gpu:3,2,1,0"], ONE_EACH[::-1], id="bind-map"),
        pytest.param(["--gres=gpu:4"], ONE_EACH, id="all-see-all"),
    ],
)
def test_each_of_four_ranks_may_fill_a_gpu_of_its_own(clusters, arguments, expected):
    cluster = clusters()
    done = cluster.slurm.run("-n4", *arguments, command=cluster.fill())
    assert cluster.taken(done) == expected, said(done)


def test_ranks_that_a_wrapper_has_bound_may_fill_their_gpus(clusters):
    cluster = clusters()
    wrapper = ["/bin/sh", "-c", 'CUDA_VISIBLE_DEVICES=$SLURM_LOCALID exec "$@"', "wrapper"]
    done = cluster.slurm.run("-n4", "--gres=gpu:4", command=[*wrapper, *cluster.fill()])
    assert cluster.taken(done) == ONE_EACH, said(done)


def test_eight_ranks_on_four_gpus_get_half_a_gpu_each(clusters):
    cluster = clusters()
    done = cluster.slurm.run("-n8", "--gres=gpu:4", command=cluster.fill(HALF))
    taken = cluster.taken(done)
    assert sorted(gpu for each in taken for gpu in each) == [0, 0, 1, 1, 2, 2, 3, 3], taken
    assert {size for each in taken for size in each.values()} == {"half"}, (taken, said(done))


@pytest.mark.parametrize(
    "arguments",
    [["--ntasks-per-gpu=2"], ["--gres=gpu:2", "--gpu-bind=single:2"], ["--gres=gpu:2", "--gpu-bind=map_gpu:0,0,1,1"]],
    ids=["ntasks-per-gpu", "bind-single", "bind-map"],
)
def test_ranks_that_are_bound_to_one_gpu_get_half_of_it_each(clusters, arguments):
    cluster = clusters()
    done = cluster.slurm.run("-n4", *arguments, command=cluster.fill(HALF))
    assert cluster.taken(done) == [{0: "half"}, {0: "half"}, {1: "half"}, {1: "half"}], said(done)


def test_two_ranks_with_two_gpus_each_use_all_of_theirs(clusters):
    cluster = clusters()
    environ = {"AUTOGPU_COUNT": "all"}
    done = cluster.slurm.run("-n2", "--gpus-per-task=2", command=cluster.fill(), environ=environ)
    assert cluster.taken(done) == [{0: "whole", 1: "whole"}, {2: "whole", 3: "whole"}], said(done)


def test_ranks_without_a_list_stay_inside_the_grant(clusters):
    # With more than one task, --gpu-bind=none leaves CUDA_VISIBLE_DEVICES and SLURM_STEP_GPUS unset.
    cluster = clusters()
    cluster.keep_from_others("--gres=gpu:2")
    done = cluster.slurm.run("-n2", "--gres=gpu:2", "--gpu-bind=none", command=cluster.fill())
    assert {gpu for each in cluster.taken(done) for gpu in each} <= {2, 3}, said(done)


def test_nodes_with_two_tasks_and_one_divide_their_gpus_by_their_own_number(clusters):
    cluster = clusters([Gpu()] * 2, [Gpu()] * 2)
    arguments = ["-N2", "-n3", "--distribution=plane=2", "--gres=gpu:2"]
    done = cluster.slurm.run(*arguments, command=cluster.fill(), environ={"AUTOGPU_COUNT": "all"})
    assert cluster.taken(done) == [{0: "whole"}, {1: "whole"}, {0: "whole", 1: "whole"}], said(done)


def test_nodes_with_one_task_and_two_divide_their_gpus_by_their_own_number(clusters):
    cluster = clusters([Gpu()] * 2, [Gpu()] * 2)
    first, second = cluster.slurm.nodes
    hosts = cluster.slurm.folder / "hosts"
    hosts.write_text(f"{first}\n{second}\n{second}\n")
    environ = {"AUTOGPU_COUNT": "all", "SLURM_HOSTFILE": str(hosts)}
    arguments = ["-N2", "-n3", "--distribution=arbitrary", "--gres=gpu:2"]
    done = cluster.slurm.run(*arguments, command=cluster.fill(), environ=environ)
    assert cluster.taken(done) == [{0: "whole", 1: "whole"}, {0: "whole"}, {1: "whole"}], said(done)


@pytest.mark.parametrize("environ", [{}, {"AUTOGPU_CUONT": "2"}], ids=["as-it-is", "wrong-key"])
def test_only_the_first_rank_prints_what_autogpu_says(clusters, environ):
    cluster = clusters([Gpu()] * 2)
    done = cluster.slurm.run("-n2", "--label", "--gres=gpu:2", command=cluster.fill(1), environ=environ)
    assert done.returncode == 0, done.stderr
    lines = [line.split(": ", 1) for line in done.stderr.splitlines()]
    printed = [(rank, line) for rank, line in lines if line.startswith("autogpu: ")]
    assert {rank for rank, _ in printed} == {"0"}, printed
    assert sum("AUTOGPU_CUONT" in line for _, line in printed) == len(environ), printed


# ---- no grant ----


def test_a_job_without_gres_takes_no_gpu_and_says_why(clusters):
    cluster = clusters()
    done = cluster.slurm.run(command=cluster.fill(1))
    assert cluster.taken(done) == [{}], said(done)
    assert len(said(done)) == 1, done.stderr


def test_a_batch_job_without_gres_takes_no_gpu_and_says_why(clusters):
    cluster = clusters()
    done = cluster.slurm.batch(" ".join(cluster.fill(1)))
    assert cluster.taken(done) == [{}], said(done)
    assert len(said(done)) == 1, done.stderr


def test_a_step_without_gres_takes_no_gpu_of_its_job(clusters):
    cluster = clusters()
    done = cluster.slurm.batch(f"srun --gres=none {' '.join(cluster.fill(1))}", "--gres=gpu:2")
    assert cluster.taken(done) == [{}], said(done)
    assert len(said(done)) == 1, done.stderr


def test_the_shell_of_salloc_takes_no_gpu_and_says_why(clusters):
    cluster = clusters()
    done = cluster.slurm.run("--gres=gpu:1", command=cluster.fill(1), program="salloc")
    assert cluster.taken(done) == [{}], said(done)
    assert len(said(done)) == 1, done.stderr


def test_a_step_inside_salloc_has_the_jobs_gpus(clusters):
    cluster = clusters()
    done = cluster.slurm.run("--gres=gpu:1", command=["srun", *cluster.fill()], program="salloc")
    assert cluster.taken(done) == [{0: "whole"}], said(done)


def test_a_cluster_that_does_not_manage_gpus_is_a_workstation(clusters):
    cluster = clusters(gres_types="")
    (taken,) = cluster.taken(cluster.slurm.run(command=cluster.fill()))
    assert list(taken.values()) == ["whole"]


# ---- a part of the node ----


@pytest.mark.parametrize("count", ["1", "all"])
def test_numbers_of_mixed_models_are_those_of_the_bus(clusters, count):
    cluster = clusters(MIXED)
    environ = {"AUTOGPU_COUNT": count}
    done = cluster.slurm.run("--gres=gpu:2", command=cluster.fill(), environ=environ)
    (taken,) = cluster.taken(done)
    assert set(taken) <= {0, 1}, said(done)
    assert list(taken.values()) == ["whole"] * (2 if count == "all" else 1)


def test_ranks_on_mixed_models_have_the_gpus_of_their_numbers(clusters):
    cluster = clusters(MIXED)
    done = cluster.slurm.run("-n2", "--gres=gpu:2", command=cluster.fill())
    assert cluster.taken(done) == [{0: "whole"}, {1: "whole"}], said(done)


@pytest.mark.parametrize("size", [0.5, HALF], ids=["small-first", "large-first"])
def test_two_shards_of_two_are_half_a_gpu_each(clusters, tmp_path, size):
    cluster = clusters([Gpu()], shards=2)
    first, told_first = cluster.held("--gres=shard:1", gib=size)
    second, told_second = cluster.held("--gres=shard:1", gib=HALF)
    claimed = claims(tmp_path / "leases", cluster.servers[0])
    assert claimed == {told["pid"]: {0: 12.0} for told in (told_first, told_second)}
    taken = [cluster.taken_by(told) for told in (told_first, told_second)]
    assert taken[1] == {0: "half"}, taken
    assert size != HALF or taken[0] == {0: "half"}, taken
    for job in (first, second):
        job.communicate(timeout=60)


def test_both_shards_of_two_are_the_whole_gpu(clusters):
    cluster = clusters([Gpu()], shards=2)
    assert cluster.taken(cluster.slurm.run("--gres=shard:2", command=cluster.fill())) == [{0: "whole"}]


PARENT = """
import subprocess, sys
import tensorflow as tf
tf.zeros((2, 2))
sys.exit(subprocess.call(sys.argv[1:]))
"""


@pytest.mark.parametrize("way", ["child", "hold", "need"])
def test_no_way_of_starting_takes_more_than_the_part_that_was_granted(clusters, way):
    cluster = clusters([Gpu()], shards=2)
    parent = cluster.slurm.folder / "parent.py"
    parent.write_text(PARENT)
    before = {
        "child": [cluster.python, str(parent)],
        "hold": [cluster.python, "-m", "autogpu", "run", "--hold", "--"],
        "need": [],
    }
    environ = {"AUTOGPU_NEED": "2GiB"} if way == "need" else {}
    done = cluster.slurm.run("--gres=shard:1", command=[*before[way], *cluster.fill(HALF)], environ=environ)
    assert cluster.taken(done) == [{0: "half"}], said(done)


# ---- other ways to start ----


def test_jobs_of_an_array_have_the_gpu_that_each_was_granted(clusters):
    cluster = clusters([Gpu()] * 2)
    # So that both run at the same time, and each was granted another GPU.
    done = cluster.slurm.batch(f"{' '.join(cluster.fill())}; sleep 5", "--array=0-1", "--gres=gpu:1")
    assert sorted(cluster.taken(done), key=str) == ONE_EACH[:2], said(done)


def test_steps_side_by_side_have_the_gpus_that_each_was_granted(clusters):
    cluster = clusters()
    fill = " ".join(cluster.fill())
    step = f"AUTOGPU_COUNT=all srun --exact -n1 --gres=gpu:2 {fill} &"
    done = cluster.slurm.batch(f"{step}\n{step}\nwait", "-n4", "--gres=gpu:4")
    taken = sorted(cluster.taken(done), key=str)
    assert taken == [{0: "whole", 1: "whole"}, {2: "whole", 3: "whole"}], said(done)


def test_scripts_side_by_side_in_a_batch_job_choose_different_gpus_of_its_grant(clusters):
    cluster = clusters()
    cluster.keep_from_others("--gres=gpu:2")
    fill = " ".join(cluster.fill())
    done = cluster.slurm.batch(f"{fill} &\n{fill} &\nwait", "--gres=gpu:2")
    assert sorted(cluster.taken(done), key=str) == [{2: "whole"}, {3: "whole"}], said(done)


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="not installed: mpirun")
def test_mpirun_in_a_batch_job_divides_the_grant(clusters):
    cluster = clusters()
    cluster.keep_from_others("--gres=gpu:2")
    # Open MPI would start its processes by srun, for which it has to be built with the cluster's PMI.
    options = "--oversubscribe --mca plm isolated --mca ras ^slurm"
    environ = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    mpirun = f"mpirun -np 2 {options} {' '.join(cluster.fill())}"
    done = cluster.slurm.batch(mpirun, "--gres=gpu:2", environ=environ)
    assert sorted(cluster.taken(done), key=str) == [{2: "whole"}, {3: "whole"}], said(done)


# ---- the cluster itself ----


def test_a_cluster_leaves_no_process(clusters):
    cluster = clusters()
    mine = f"SLURM_CONF={cluster.slurm.configuration}".encode()
    cluster.keep_from_others("--gres=gpu:2")

    def processes():
        return [path for path in Path("/proc").glob("[0-9]*/environ") if mine in environment_of(path)]

    assert len(processes()) >= 5
    clusters.close()
    assert processes() == []


def environment_of(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().split(b"\0")
    except OSError:
        return []
