"""Failure modes of launchers and parent processes, and of the environment that children inherit."""

import pytest

from tests.gpusim import Gpu
from tests.support.simulator_client import device_files

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(600)]
thorough = pytest.mark.thorough

PARENT = """
import multiprocessing, subprocess, sys

def work():
    import tensorflow as tf
    assert tf.random.uniform((2, 2)).device.endswith("GPU:0")

if __name__ == "__main__":
    work()
    worker = multiprocessing.get_context("spawn").Process(target=work)
    worker.start()
    done = subprocess.run([sys.executable, "-c", "import train; train.work()"])
    worker.join(120)
    sys.exit(worker.exitcode or done.returncode)
"""


@thorough
def test_11_children_share_the_gpu_and_the_claim_of_their_parent(host, tmp_path):
    start = host(*[Gpu()] * 3, script=PARENT)
    status, lines = start(PYTHONPATH=str(tmp_path / "server0")).end()
    assert status == 0
    contexts = start.server.contexts()
    assert len(contexts) == 3
    assert {gpu for gpus in contexts.values() for gpu in gpus} == {2}
    assert sum("shared with the parent process" in line for line in lines) == 2


FORK = """
import os
import tensorflow as tf
tf.random.uniform((2, 2))
child = os.fork()
if child == 0:
    # As a worker of a data loader does it.
    import tensorflow as tf
    print("child", os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
    os._exit(0)
os.waitpid(child, 0)
print("parent", os.environ["CUDA_VISIBLE_DEVICES"], len(os.listdir(os.environ["AUTOGPU_LEASE_DIR"])))
"""


def test_11_forked_child_has_the_gpu_and_claim_of_its_parent(train):
    ran = train(Gpu(), Gpu())(FORK)
    child, parent = ran.stdout.splitlines()
    # The lease folder has one file: parent and child share a claim.
    assert parent.split() == ["parent", child.split()[1], "1"]
    assert (ran.contexts, len(ran.said)) == ([1], 1)


USE = "import tensorflow as tf\ntf.random.uniform((2, 2))\n"


# tests/selection covers the rank variables of other launchers.
def test_12_each_local_rank_gets_its_own_gpu_and_only_one_prints(train):
    run = train(Gpu(processes={5004242: "9GiB"}, utilization=90), Gpu(), Gpu())
    ranks = [run(USE, LOCAL_RANK=str(number), LOCAL_WORLD_SIZE="2") for number in range(2)]
    # Rank 0 gets the first of the two idle GPUs, and rank 1 gets the second.
    assert [ran.contexts for ran in ranks] == [[1], [2]]
    assert [len(ran.said) for ran in ranks] == [1, 0]


COUNT = "import tensorflow as tf\nprint(len(tf.config.list_physical_devices('GPU')))\ntf.random.uniform((2, 2))\n"


@pytest.mark.parametrize(
    ("value", "gpus"),
    [
        pytest.param("", [], id="empty"),
        pytest.param("-1", [], id="minus-one", marks=thorough),
        pytest.param("NoDevFiles", [], id="not-a-number", marks=thorough),
        pytest.param("{0}", [1], id="uuid-prefix", marks=thorough),
        pytest.param("{0},{1}", [1, 2], id="uuid-prefixes"),
        pytest.param("MIG-4d806f22-346a-5a1d-ba01-86b505cdf485", [], id="unknown-mig-uuid", marks=thorough),
        pytest.param("0,0", [], id="same-gpu-twice", marks=thorough),
        pytest.param("1,0", [0, 1], id="reordered"),
        pytest.param("0,-1,1", [0], id="ends-at-minus-one"),
        pytest.param("7,0", [], id="number-too-high", marks=thorough),
    ],
)
def test_13_inherited_list_is_read_as_cuda_reads_it(train, commands, value, gpus):
    run = train(Gpu(), Gpu(), Gpu())
    inherited = value.format(*[gpu.uuid[:12] for gpu in run.server.gpus[1:]])
    ran = run(COUNT, CUDA_VISIBLE_DEVICES=inherited)
    plain = run(COUNT, CUDA_VISIBLE_DEVICES=inherited, AUTOGPU="0")
    assert ran.stdout == plain.stdout == f"{len(gpus)}\n"
    # Without autogpu the script uses every listed GPU. With autogpu it uses one of them.
    assert plain.contexts == gpus
    assert len(ran.contexts) == min(1, len(gpus))
    assert set(ran.contexts) <= set(gpus)
    assert set(commands(run.server).pick(CUDA_VISIBLE_DEVICES=inherited)) <= set(gpus)


@pytest.mark.parametrize("order", ["1,0", "0,1"])
def test_13_local_rank_is_an_index_into_the_inherited_list(train, order):
    run = train(Gpu(), Gpu(), Gpu())
    for rank, gpu in enumerate(order.split(",")):
        ran = run(USE, CUDA_VISIBLE_DEVICES=order, LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2")
        assert ran.contexts == [int(gpu)]


@pytest.mark.parametrize("denied", ["refuse", pytest.param("omit", marks=thorough)])
@pytest.mark.parametrize("task", [{}, {"SLURM_JOB_GPUS": "0"}], ids=["without-SLURM_JOB_GPUS", "with-SLURM_JOB_GPUS"])
def test_14_job_takes_the_one_gpu_that_its_cgroup_allows(train, commands, tmp_path, denied, task):
    run = train(Gpu(), Gpu(), Gpu(), device_files=device_files(tmp_path, 1), denied=denied)
    # CUDA_VISIBLE_DEVICES is not set: a site can configure Slurm so that it does not set the variable.
    job = {"SLURM_JOB_ID": "7", "SLURM_NODEID": "0", "SLURM_GPUS_ON_NODE": "1", **task}
    ran = run(USE, **job)
    assert (ran.contexts, ran.stderr.count("Traceback")) == ([1], 0), ran.stderr
    assert commands(run.server)("pick", "--format", "uuid", **job).stdout.strip() == run.server.gpus[1].uuid


def test_15_used_memory_makes_a_gpu_busy_if_no_process_is_listed(train, commands):
    # NVML lists no process, as in a container. In a tie the higher index would win.
    run = train(Gpu(hide_processes=True), Gpu(hide_processes=True, processes={5004242: "9GiB"}))
    assert run(USE).contexts == [0]
    (idle, busy) = commands(run.server).status()["gpus"]
    assert (idle["state"], busy["state"]) == ("free", "busy")


def test_15_limit_holds_if_the_driver_does_not_list_the_jobs_pid(train):
    script = "import tensorflow as tf\nfor gib in (256, 640):\n    tf.raw_ops.Empty(shape=[gib, 1 << 18], dtype=1)\n"
    ran = train(Gpu(hide_processes=True))(script, AUTOGPU_LIMIT="1GiB")
    assert ran.contexts == [0]
    assert 0.6 * (1 << 30) < ran.allocated[0] <= 1 << 30
