"""Local ranks: the number of this process, the job of its ranks, and the ranks that share its GPUs."""

import json

import pytest

from autogpu.engines.launchers import among_same_gpus, coordinating_task, library_count, local_rank, worker_marker
from autogpu.engines.model import LONE_RANK, WORKERS, Grant, LocalRank, with_scripts_list
from autogpu.frozen import replace
from autogpu.selection.decide import decide
from autogpu.selection.decision import Verdict
from autogpu.selection.members import request_of_all
from autogpu.variables import LIBRARY_COUNT, WORKER
from tests.support.selections import request
from tests.support.values import gpu

OMPI = {"OMPI_COMM_WORLD_LOCAL_RANK": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
ONE_OF_MPI = {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
SLURM = {"SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "4(x2)"}
STEP = {**SLURM, "SLURM_STEP_ID": "0"}
WORKER_1 = {WORKER: worker_marker(1, 3, "workers.7.ab")}
ONE_TASK = {**STEP, "SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "1"}
BY_HAND = {"LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "29500"}
DEEPSPEED = {"LOCAL_RANK": "1", "LOCAL_SIZE": "2", "WORLD_SIZE": "8"}


def second_node(tasks, local="0"):
    return {**STEP, "SLURM_NODEID": "1", "SLURM_LOCALID": local, "SLURM_STEP_TASKS_PER_NODE": tasks}


def tf_config(kind, index, **cluster):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


TWO_HERE = ["here:1", "here:2"]
SECOND_WORKER = tf_config("worker", 1, worker=TWO_HERE)
OF_TWO_HOSTS = tf_config("worker", 2, worker=["there:1", "here:1", "HERE:2"])
WITH_CHIEF = tf_config("worker", 0, chief=["here:1"], worker=["here:2"])
WITH_SERVERS = tf_config("worker", 1, chief=["here:1"], ps=["here:2"], worker=["here:3", "here:4"])
SECOND_OF_TWO = LocalRank(1, 2, "TF_CONFIG")
NO_INDEX = '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1e999}}'
NO_TABLE = '{"cluster": 7, "task": {"type": "worker", "index": 0}}'
NO_CLUSTERS = ("", "x", "[1]", "{}", NO_INDEX, NO_TABLE, "[" * 100_000)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({}, None, id="no-launcher"),
        pytest.param(OMPI, LocalRank(2, 4, "Open MPI"), id="open-mpi"),
        pytest.param({"MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, LocalRank(1, 2, "MPICH"), id="mpich"),
        pytest.param(STEP, LocalRank(1, 4, "Slurm"), id="slurm-step"),
        pytest.param(SLURM, None, id="slurm-batch-script"),
        pytest.param({**STEP, **OMPI}, LocalRank(2, 4, "Open MPI"), id="innermost-launcher-first"),
        pytest.param(second_node("2,4", "3"), LocalRank(3, 4, "Slurm"), id="slurm-second-node-has-more"),
        pytest.param(second_node("2,1"), None, id="slurm-second-node-has-one"),
        pytest.param(second_node("3(x2),1", "2"), LocalRank(2, 3, "Slurm"), id="slurm-same-count-on-two-nodes"),
        pytest.param(second_node("4"), None, id="slurm-node-not-in-the-list"),
        pytest.param({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, None, id="torchrun-with-one-rank"),
        pytest.param({"LOCAL_RANK": "1"}, None, id="rank-without-a-size"),
        pytest.param({"LOCAL_RANK": "1", "WORLD_SIZE": "4"}, LocalRank(1, 4, "LOCAL_RANK"), id="lightning"),
        pytest.param(WORKER_1, LocalRank(1, 3, WORKERS), id="worker-of-a-program"),
        pytest.param({**WORKER_1, "LOCAL_RANK": "2", "WORLD_SIZE": "4"}, LocalRank(1, 3, WORKERS), id="worker-first"),
        pytest.param(
            {**WORKER_1, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}, LocalRank(0, 2, "torchrun"), id="torchrun-first"
        ),
        pytest.param({WORKER: "3/3/ab"}, None, id="worker-number-out-of-range"),
        pytest.param(DEEPSPEED, LocalRank(1, 2, "DeepSpeed"), id="deepspeed"),
        pytest.param({**OMPI, "LOCAL_RANK": "2", "WORLD_SIZE": "8"}, LocalRank(2, 4, "Open MPI"), id="open-mpi-first"),
        pytest.param({**ONE_OF_MPI, **BY_HAND}, LocalRank(1, 2, "LOCAL_RANK"), id="lone-rank-below-mpis-only-rank"),
        pytest.param(ONE_OF_MPI, None, id="mpis-only-rank"),
        pytest.param({"LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "1"}, None, id="lone-rank-of-world-size-1"),
        pytest.param({"LOCAL_RANK": "x", "LOCAL_WORLD_SIZE": "2"}, None, id="rank-is-not-a-number"),
        pytest.param({"LOCAL_RANK": "5", "LOCAL_WORLD_SIZE": "2"}, None, id="rank-out-of-range"),
        pytest.param({"LOCAL_RANK": "\u0661", "LOCAL_WORLD_SIZE": "2"}, None, id="rank-in-other-digits"),
        pytest.param(SECOND_WORKER, SECOND_OF_TWO, id="workers-of-one-host"),
        pytest.param(tf_config("worker", 0, worker=["here:1", "there:1"]), None, id="workers-of-two-hosts"),
        pytest.param(OF_TWO_HOSTS, SECOND_OF_TWO, id="second-worker-of-the-second-host"),
        pytest.param(WITH_CHIEF, SECOND_OF_TWO, id="chief-is-a-rank"),
        pytest.param(WITH_SERVERS, SECOND_OF_TWO, id="parameter-servers-do-not-count"),
        pytest.param(tf_config("ps", 0, ps=TWO_HERE, worker=TWO_HERE), None, id="parameter-server-is-not-a-rank"),
        pytest.param(tf_config("evaluator", 0, worker=TWO_HERE), None, id="evaluator"),
        pytest.param({**SECOND_WORKER, **ONE_OF_MPI}, SECOND_OF_TWO, id="workers-below-a-launcher-of-one-rank"),
        *(pytest.param({"TF_CONFIG": text}, None, id=f"malformed-tf-config-{i}") for i, text in enumerate(NO_CLUSTERS)),
    ],
)
def test_local_rank_is_read_from_the_launchers_variables(environ, expected):
    found = local_rank(environ)
    assert (found and replace(found, job="")) == expected


def job(namespace="1", **environ):
    return local_rank({**BY_HAND, **environ}, namespace).job


HOROVOD = {"HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "4"}
GLOO = {**HOROVOD, "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": "4000"}
TORCHRUN = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
IN_STEP = {**STEP, "SLURM_JOB_ID": "7"}
SECOND_OF_MPI = {**OMPI, "OMPI_COMM_WORLD_LOCAL_RANK": "1", "PMIX_NAMESPACE": "1320157185"}


@pytest.mark.parametrize(
    ("environ", "other"),
    [
        pytest.param(GLOO, {"HOROVOD_GLOO_RENDEZVOUS_PORT": "4001"}, id="horovodrun"),
        pytest.param(TORCHRUN, {"MASTER_PORT": "29501"}, id="torchrun"),
        pytest.param({**TORCHRUN, "GROUP_RANK": "0"}, {"GROUP_RANK": "1"}, id="two-agents-of-torchrun-on-one-host"),
        pytest.param(SECOND_OF_MPI, {"PMIX_NAMESPACE": "1320157186"}, id="open-mpi"),
        pytest.param(IN_STEP, {"SLURM_STEP_ID": "1"}, id="slurm-step"),
        pytest.param({**IN_STEP, **HOROVOD}, {"SLURM_STEP_ID": "1"}, id="horovod-variables-in-a-slurm-step"),
        pytest.param({**SECOND_OF_MPI, **HOROVOD}, {"PMIX_NAMESPACE": "2"}, id="horovod-variables-under-open-mpi"),
    ],
)
def test_ranks_with_the_same_launcher_variables_are_one_job(environ, other):
    numbers = dict.fromkeys([name for name in environ if name.endswith(("LOCAL_RANK", "LOCALID"))], "0")
    first, second, another = (local_rank({**environ, **each}, "1") for each in (numbers, {}, other))
    assert (first.rank, second.rank, another.rank) == (0, 1, 1)
    assert "" != first.job == second.job != another.job != ""


@pytest.mark.parametrize(
    "environ",
    [
        pytest.param({**HOROVOD, "MASTER_PORT": "29500"}, id="port-of-another-launcher"),
        pytest.param({**ONE_TASK, "SLURM_JOB_ID": "7", **HOROVOD}, id="horovod-below-the-only-task-of-a-step"),
        pytest.param({"MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, id="mpich"),
    ],
)
def test_rank_has_no_job_name_if_its_launcher_sets_no_address(environ):
    assert local_rank(environ).job == ""


def job_of_workers(*addresses, index=0, namespace=""):
    return local_rank(tf_config("worker", index, worker=addresses), namespace).job


def test_ranks_with_the_same_rendezvous_address_are_one_job():
    assert job() == job(LOCAL_RANK="0") == job(MASTER_ADDR="127.0.0.1") == job(MASTER_ADDR="LOCALHOST") != ""
    assert job() != job(MASTER_PORT="29501")
    assert job(MASTER_ADDR="node1") != job(MASTER_ADDR="node2")
    assert local_rank({"LOCAL_RANK": "1", "WORLD_SIZE": "2"}).job == ""
    assert job_of_workers(*TWO_HERE) == job_of_workers(*TWO_HERE, index=1) != ""
    assert job_of_workers(*TWO_HERE) != job_of_workers("here:1", "here:3")


def test_localhost_of_each_container_means_another_job():
    assert job("1") != job("2")
    assert job("1", MASTER_ADDR="node1") == job("2", MASTER_ADDR="node1")
    for host, is_same in (("localhost", False), ("here", True)):
        one, other = (job_of_workers(f"{host}:1", f"{host}:2", namespace=each) for each in "12")
        assert (one == other) is is_same


@pytest.mark.parametrize(
    ("environ", "task"),
    [
        (tf_config("ps", 0, ps=TWO_HERE, worker=TWO_HERE), "ps"),
        (tf_config("chief", 0, chief=["here:9"], ps=TWO_HERE, worker=TWO_HERE), "chief"),
        (tf_config("worker", 0, ps=TWO_HERE, worker=TWO_HERE), ""),
        (tf_config("chief", 0, chief=["here:9"], worker=TWO_HERE), ""),
        ({}, ""),
    ],
)
def test_parameter_servers_and_their_chief_only_coordinate(environ, task):
    assert coordinating_task(environ) == task


@pytest.mark.parametrize(
    ("size", "gpus", "expected"),
    [
        (2, 4, [([0, 1], 1), ([2, 3], 1)]),
        (3, 4, [([0], 1), ([1], 1), ([2], 1)]),
        (4, 2, [([0], 2), ([0], 2), ([1], 2), ([1], 2)]),
        (6, 4, [([0], 2), ([0], 2), ([1], 1), ([2], 2), ([2], 2), ([3], 1)]),
    ],
)
def test_ranks_divide_the_gpus_of_the_host(size, gpus, expected):
    shares = [LocalRank(rank, size, "").slice(gpus) for rank in range(size)]
    assert [(list(positions), sharers) for positions, sharers in shares] == expected
    assert LocalRank(1, size, "", dividers=1).slice(gpus) == (range(gpus), 1), "those of its own are all its own"


def test_lone_ranks_of_a_host_are_at_most_as_many_as_its_gpus():
    shares = [LocalRank(rank, 8, "LOCAL_RANK").slice(4) for rank in range(6)]
    assert [(list(positions), sharers) for positions, sharers in shares] == [([rank % 4], 1) for rank in range(6)]
    assert [LocalRank(0, 8, "LOCAL_RANK").at_most(gpus) for gpus in (4, 16)] == [4, 8]
    assert LocalRank(0, 8, "torchrun").at_most(4) == 8


def test_rank_with_unknown_gpus_is_left_to_the_framework():
    asked = request(gpu(0), uuids=None, grant=Grant(rank=LocalRank(1, 2, LONE_RANK, job="job")))
    assert decide(request_of_all(asked)).verdict is Verdict.CANNOT_CHOOSE


@pytest.mark.parametrize(
    ("size", "launcher", "gpus", "expected"),
    [
        pytest.param(2, "torchrun", 1, 1, id="list-of-one-gpu"),
        pytest.param(4, "torchrun", 2, 1, id="list-of-two-gpus-for-one-of-four-ranks"),
        pytest.param(2, "torchrun", 2, None, id="list-with-a-gpu-for-each-rank"),
        pytest.param(8, "LOCAL_RANK", 1, 1, id="list-of-one-gpu-on-several-hosts"),
        pytest.param(8, "LOCAL_RANK", 4, None, id="list-of-all-gpus-of-this-host"),
    ],
)
def test_gpu_list_of_a_ranks_script_is_its_own_if_too_short_for_all(size, launcher, gpus, expected):
    # ``dividers=1`` comes from the start of the ranks. It does not count, because they had no list at that time.
    rank = with_scripts_list(LocalRank(1, size, launcher, dividers=1), gpus)
    assert rank.dividers == expected


def mpi(rank):
    return LocalRank(rank, 4, "Open MPI")


def slurm(size):
    return LocalRank(1, size, "Slurm")


ALONE = LocalRank(0, 4, "LOCAL_RANK")
OF_TF_CONFIG = LocalRank(1, 2, "TF_CONFIG")
FOR_ALL = None


@pytest.mark.parametrize(
    ("rank", "visible", "of_launcher", "of_step", "expected"),
    [
        pytest.param(mpi(2), "2", None, "", 1, id="mpi-rank-with-its-own-gpu"),
        pytest.param(mpi(2), "0", "0", "", FOR_ALL, id="list-of-the-launcher"),
        pytest.param(mpi(2), "0,1,2,3", None, "", FOR_ALL, id="list-with-a-gpu-for-each-rank-of-mpi"),
        pytest.param(OF_TF_CONFIG, "1", None, "", 1, id="tf-config-worker-with-its-own-gpu"),
        pytest.param(ALONE, "0", None, "", 1, id="lone-rank-with-its-own-gpu"),
        pytest.param(ALONE, "0,1,2", None, "", FOR_ALL, id="lone-rank-with-all-gpus-of-the-host"),
        # ``of_step`` stands for the values of SLURM_STEP_GPUS and SLURM_GPUS_ON_NODE.
        pytest.param(slurm(4), "1", None, "1 of 4", 1, id="slurm-gpu-per-task"),
        pytest.param(slurm(8), "1", None, "1 of 4", 2, id="slurm-two-tasks-per-gpu"),
        pytest.param(slurm(4), "0", None, "0 of 2", 2, id="slurm-ntasks-per-gpu=2"),
        pytest.param(slurm(2), "0", None, "2 of 2", 1, id="slurm-gpu-per-task-with-cgroups"),
        pytest.param(slurm(4), "0,1", None, "0,1 of 2", 4, id="slurm-tasks-not-bound"),
        pytest.param(slurm(4), "1", None, "0,1,2,3 of 4", 1, id="slurm-list-narrowed-by-a-script"),
    ],
)
def test_ranks_that_share_a_gpu_list_divide_it(rank, visible, of_launcher, of_step, expected):
    step, _, on_node = of_step.partition(" of ")
    environ = {"SLURM_STEP_GPUS": step, "SLURM_GPUS_ON_NODE": on_node} if of_step else {}
    environ.update({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    found = among_same_gpus(rank, environ, of_launcher)
    assert found.dividers == expected


@pytest.mark.parametrize(
    ("binding", "sharing"),
    [
        pytest.param("map_gpu:0,0", [2, 2], id="one-gpu-for-two-tasks"),
        pytest.param("map_gpu:0,1", [1, 1], id="one-gpu-for-each-task"),
        pytest.param("map_gpu:0,1,0,0", [3, 1, 3, 3], id="three-tasks-on-one-gpu"),
        pytest.param("map_gpu:0*2,1*2", [2, 2, 2, 2], id="repeat-count"),
        pytest.param("map_gpu:0,1", [2, 2, 2, 2], id="list-shorter-than-the-tasks"),
        pytest.param("verbose,mask_gpu:0x1,0x2,0x1", [2, 1, 2], id="masks"),
        pytest.param("map_gpu:0*999999999,1", [1, 1], id="repeat-count-out-of-range"),
    ],
)
def test_tasks_that_slurm_binds_to_one_gpu_share_it(binding, sharing):
    environ = {"SLURM_STEP_GPUS": "0", "SLURM_GPUS_ON_NODE": "4", "CUDA_VISIBLE_DEVICES": "0"}
    environ["SLURMD_TRES_BIND"] = f"gpu:{binding}"
    ranks = [LocalRank(number, len(sharing), "Slurm") for number in range(len(sharing))]
    assert [among_same_gpus(rank, environ).dividers for rank in ranks] == sharing


@pytest.mark.parametrize(
    ("environ", "count"),
    [
        pytest.param(BY_HAND, 2, id="lightning"),
        pytest.param({**BY_HAND, "LOCAL_WORLD_SIZE": "2"}, 0, id="torchrun"),
        pytest.param(WORKER_1, 0, id="workers-of-a-program"),
        pytest.param({}, 0, id="no-rank"),
    ],
)
def test_only_ranks_of_lightning_use_the_gpu_count_of_their_program(environ, count):
    environ = {**environ, LIBRARY_COUNT: "2"}
    assert library_count(local_rank(environ), environ) == count
