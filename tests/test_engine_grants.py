"""Grants of engines, read from the environment variables that the engines set."""

import pytest

from autogpu.engines.grants import EngineFacts, granted
from autogpu.engines.launchers import TF_CONFIG, among_same_gpus, local_rank
from autogpu.engines.model import NO_ENGINE, Denial, Grant, LocalRank, settled
from autogpu.engines.ray_tasks import RayTask
from autogpu.frozen import replace
from tests.support.values import cut, gpu, inventory

CONF = """
GresTypes=gpu,shard
NodeName=DEFAULT CPUs=8 Gres=gpu:4,shard:32
NodeName=small Gres=gpu:2 State=UNKNOWN
NodeName=gpu[01-04,7],big \\
    Gres=gpu:a100:4(S:0-1),shard:8 State=UNKNOWN  # eight halves
NodeName=rack[0-1]n[1-4] Gres=gpu:2,shard:8
NodeName=n[1-2-3] Gres=gpu:2,shard:8
NodeName=plain
"""
WITHOUT_GPUS = CONF.replace("GresTypes=gpu,shard", "#GresTypes=gpu")
JOB = {"SLURM_JOB_ID": "7"}
BATCH = {**JOB, "SLURM_NODEID": "0"}
FULL_NODE = {"SLURM_JOB_GPUS": "0,1", "SLURM_GPUS_ON_NODE": "2"}
STEP = {**BATCH, "SLURM_STEP_ID": "0", "SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "1"}
VISIBLE = "CUDA_VISIBLE_DEVICES"


ONE_OF_FOUR = {**STEP, "SLURM_STEP_GPUS": "2", "GPU_DEVICE_ORDINAL": "2"}
UNSET = Grant("Slurm", visible="2", unnamed=1, counts_by_bus=True)
NONE_FROM_SLURM = Grant("Slurm", Denial.SLURM_GRANTED_NONE)
BY_BUS, HALF = Grant("Slurm", counts_by_bus=True), Grant("Slurm", fraction=0.5, counts_by_bus=True)


def shards(count, node="gpu02", visible="0"):
    granted_there = {"SLURM_STEP_GPUS": visible, "SLURM_SHARDS_ON_NODE": str(count), "SLURMD_NODENAME": node}
    return {**STEP, VISIBLE: visible, **granted_there}


def on_slurm(environ, conf=CONF):
    return replace(granted(environ, EngineFacts(slurm_conf=conf, started_with=environ.get(VISIBLE))), job="")


def test_processes_with_one_grant_of_slurm_have_one_job():
    def job(environ, **others):
        environ = {**environ, "SLURM_STEP_GPUS": "0", "SLURM_JOB_GPUS": "0", **others}
        return granted(environ, EngineFacts(started_with="0")).job

    assert job(BATCH) == job(BATCH, SLURM_PROCID="1") == "Slurm.7."
    assert len({job(BATCH), job(STEP), job(STEP, SLURM_STEP_ID="1"), job(BATCH, SLURM_JOB_ID="8")}) == 4


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({**STEP, VISIBLE: "0,1", "SLURM_STEP_GPUS": "0,1"}, BY_BUS, id="step"),
        pytest.param({**BATCH, VISIBLE: "2,3", "SLURM_JOB_GPUS": "2,3"}, BY_BUS, id="batch"),
        pytest.param({**STEP, VISIBLE: "0,1", "SLURM_STEP_GPUS": "2,3"}, BY_BUS, id="cgroup-counts-from-0"),
        pytest.param(STEP, NONE_FROM_SLURM, id="step-without-gres"),
        pytest.param({**STEP, "SLURM_GPUS_ON_NODE": "2"}, Grant("Slurm", unnamed=2), id="gpu-bind-none"),
        pytest.param({**STEP, "SLURM_JOB_GPUS": "0,1"}, NONE_FROM_SLURM, id="gres-none-in-a-gpu-job"),
        pytest.param(JOB, NONE_FROM_SLURM, id="salloc"),
        pytest.param({**STEP, "SLURM_STEP_GPUS": "2"}, UNSET, id="list-unset-by-the-user"),
        pytest.param({**shards(1), VISIBLE: "GPU-5d0f"}, HALF, id="uuid-in-a-shard"),
        pytest.param(
            {**STEP, **FULL_NODE, "SLURM_STEP_GPUS": "0,1", VISIBLE: "1"}, BY_BUS, id="user-selects-one-of-two"
        ),
        pytest.param({**STEP, VISIBLE: "1"}, NO_ENGINE, id="users-list-in-a-job-without-gres"),
        pytest.param({**BATCH, VISIBLE: "2", "SLURM_JOB_GPUS": "0,1"}, NO_ENGINE, id="users-list-of-another-gpu"),
        pytest.param({**ONE_OF_FOUR, VISIBLE: "0"}, NO_ENGINE, id="users-list-differs-from-slurms-copy"),
        pytest.param({**ONE_OF_FOUR, VISIBLE: "2"}, BY_BUS, id="slurms-list-equals-its-copy"),
        pytest.param({**STEP, VISIBLE: "1", "SLURM_STEP_GPUS": "0,1"}, BY_BUS, id="task-bound-to-one-of-two"),
        pytest.param(shards(1), HALF, id="one-shard-of-two"),
        pytest.param(shards(1, "big"), HALF, id="shard-of-a-node-by-name"),
        pytest.param(shards(2), BY_BUS, id="all-shards-of-a-gpu"),
        pytest.param(shards(2, visible="0,1"), HALF, id="shards-on-two-gpus"),
        pytest.param(shards(1, "gpu05"), BY_BUS, id="shards-of-an-unknown-node"),
        pytest.param(shards(1, "plain"), Grant("Slurm", fraction=0.125, counts_by_bus=True), id="default-nodes-shards"),
        pytest.param(shards(1, "rack1n3"), Grant("Slurm", fraction=0.25, counts_by_bus=True), id="two-ranges-of-nodes"),
        pytest.param(shards(1, "n2"), BY_BUS, id="malformed-range-in-a-node-name"),
        pytest.param({**STEP, VISIBLE: "0"}, NO_ENGINE, id="users-list-0-without-gres"),
        pytest.param({**STEP, **FULL_NODE}, NONE_FROM_SLURM, id="gres-none-on-a-full-node"),
    ],
)
def test_slurms_grant_is_read_from_its_variables(environ, expected):
    assert on_slurm(environ) == expected


MPS = {**STEP, VISIBLE: "0", "SLURM_STEP_GPUS": "0", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}


@pytest.mark.parametrize(
    ("environ", "types", "expected"),
    [
        pytest.param(MPS, "gpu,mps", HALF, id="half-by-mps"),
        pytest.param(MPS, "gpu", BY_BUS, id="percentage-set-by-the-user"),
        pytest.param({**MPS, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100"}, "gpu,mps", BY_BUS, id="all-by-mps"),
        pytest.param({**MPS, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "x"}, "gpu,mps", BY_BUS, id="malformed-percentage"),
    ],
)
def test_slurm_grants_a_fraction_by_mps(environ, types, expected):
    assert on_slurm(environ, f"GresTypes={types}\n") == expected


def test_grant_of_an_ended_slurm_job_is_marked_as_ended():
    environ = {**BATCH, VISIBLE: "2,3", "SLURM_JOB_GPUS": "2,3"}
    assert granted(environ, EngineFacts(slurm_conf=CONF, started_with="2,3", slurm_job_has_ended=True)).has_ended


def test_gpu_list_that_a_script_sets_later_does_not_change_the_grant():
    facts = EngineFacts(slurm_conf=CONF, started_with="0")
    assert granted({**shards(1), VISIBLE: "3"}, facts) == granted(shards(1), facts)
    assert granted(shards(1), facts).fraction == 0.5


def test_unset_list_of_slurm_is_replaced_by_slurms_own_numbers():
    assert settled(UNSET, inventory(gpu(0))) == replace(UNSET, unnamed=None, visible=None), "a device cgroup"
    assert settled(UNSET, inventory(*map(gpu, range(4)))) == replace(UNSET, unnamed=None)


@pytest.mark.parametrize("conf", [WITHOUT_GPUS, ""], ids=["no-gres-types", "empty-or-unreadable"])
def test_slurm_cluster_that_manages_no_gpus_makes_no_grant(conf):
    assert [on_slurm(environ, conf) for environ in (STEP, BATCH, JOB)] == [Grant()] * 3


def test_grant_without_numbers_holds_if_the_driver_shows_that_many():
    grant = Grant("Slurm", unnamed=2)
    assert settled(grant, inventory(gpu(0), gpu(1))) == settled(grant, inventory(*cut(0, 5, 5))) == Grant("Slurm")
    none = settled(grant, inventory(*map(gpu, range(4))))
    assert none == Grant("Slurm", Denial.UNKNOWN_WHICH, unnamed=2, on_host=4)
    assert settled(grant, None) is grant, "as long as nothing is read"
    assert settled(NO_ENGINE, inventory(gpu(0))) is NO_ENGINE


NONE_FROM_RAY = Grant("Ray", Denial.RAY_ASSIGNED_NONE)
RAY = {"RAY_RAYLET_PID": "7"}


@pytest.mark.parametrize(
    ("task", "environ", "expected"),
    [
        pytest.param(RayTask(1, ("2",), True, worker=41), {VISIBLE: "2"}, Grant("Ray"), id="whole-gpu"),
        pytest.param(RayTask(0.5, ("2",), True, worker=41), {VISIBLE: "2"}, Grant("Ray", fraction=0.5), id="half-gpu"),
        pytest.param(RayTask(0, (), True, worker=41), {}, NONE_FROM_RAY, id="no-gpu-for-the-task"),
        pytest.param(RayTask(0, (), False, worker=41), {}, Grant(), id="cluster-without-gpus"),
        pytest.param(RayTask(2, ("1", "3"), True, worker=41), {}, Grant("Ray", visible="1,3"), id="ray-sets-no-list"),
        pytest.param(None, {VISIBLE: "2"}, Grant(), id="not-connected-to-ray"),
    ],
)
def test_rays_grant_is_read_from_its_task(task, environ, expected):
    found = granted({**RAY, **environ}, EngineFacts(ray=task))
    assert replace(found, job="") == expected
    assert found.job == ("Ray.41" if found.engine and not found.is_none else "")
    assert granted(environ, EngineFacts(ray=task)) == Grant(), "outside of a worker"


OTHERS = ("PBS_JOBID", "BATCH_SYSTEM", "LSB_JOBID", "KUBERNETES_SERVICE_HOST", "__DASK_PARENT_PID")


@pytest.mark.parametrize("engine", OTHERS)
def test_engine_that_only_sets_the_gpu_list_needs_no_grant(engine):
    assert granted({engine: "7", VISIBLE: "1,2,0"}) == Grant()


def test_coordinating_tensorflow_task_needs_no_gpu():
    text = '{"cluster": {"ps": ["a:1"], "worker": ["a:2"]}, "task": {"type": "ps", "index": 0}}'
    grant = granted({"TF_CONFIG": text})
    assert grant == Grant("TF_CONFIG", Denial.COORDINATOR, "ps")
    assert not grant.is_none


DASK, FOR_ALL, OWN = {"__DASK_PARENT_PID": "7"}, None, 1


@pytest.mark.parametrize(
    ("environ", "facts", "expected"),
    [
        pytest.param({**RAY, VISIBLE: "2"}, {"ray": RayTask(1, ("2",), True)}, OWN, id="ray-whole-gpu"),
        pytest.param({**RAY, VISIBLE: "2"}, {"ray": RayTask(0.5, ("2",), True)}, OWN, id="ray-half-a-gpu"),
        pytest.param(RAY, {"ray": RayTask(2, ("2", "3"), True)}, OWN, id="ray-without-a-list"),
        # Ray Train does this for PyTorch: each worker sees the GPUs of all workers.
        pytest.param({**RAY, VISIBLE: "2,3"}, {"ray": RayTask(1, ("2",), True)}, FOR_ALL, id="ray-lists-all-workers"),
        pytest.param({**DASK, VISIBLE: "1,0"}, {"is_given": True}, OWN, id="dask-gave-the-list"),
        pytest.param({**DASK, VISIBLE: "1,0"}, {}, FOR_ALL, id="dask-worker-inherits-the-list"),
        pytest.param({VISIBLE: "1,0"}, {"is_given": True}, FOR_ALL, id="script-sets-the-list"),
    ],
)
def test_gpus_that_an_engine_gave_to_one_worker_are_not_divided(environ, facts, expected):
    rank = granted(environ, EngineFacts(rank=LocalRank(1, 2, TF_CONFIG), **facts)).rank
    assert (rank.rank, rank.dividers) == (1, expected)


def test_task_of_slurm_is_a_rank_inside_its_grant():
    environ = {**STEP, VISIBLE: "1", "SLURM_STEP_GPUS": "0,1", "SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "2"}
    rank = among_same_gpus(local_rank(environ), environ)
    assert (rank.rank, rank.size, rank.launcher, rank.dividers) == (1, 2, "Slurm", 1)
    grant = granted(environ, EngineFacts(slurm_conf=CONF, started_with="1", rank=rank))
    assert grant == Grant("Slurm", counts_by_bus=True, rank=rank, job="Slurm.7.0")
    assert not grant.is_first
    assert granted({}).is_first
