"""Failure modes of processes that start others, and of what they hand down."""

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
def test_11_children_of_a_holder_share_its_gpu_and_its_claim(host, tmp_path):
    start = host(*[Gpu()] * 3, script=PARENT)
    status, lines = start(PYTHONPATH=str(tmp_path / "server0")).end()
    assert status == 0
    contexts = start.server.contexts()
    assert len(contexts) == 3
    assert {gpu for gpus in contexts.values() for gpu in gpus} == {2}
    assert sum("shared with its parent process" in line for line in lines) == 2


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


def test_11_a_fork_has_what_its_parent_has(train):
    ran = train(Gpu(), Gpu())(FORK)
    child, parent = ran.stdout.splitlines()
    # One claim.
    assert parent.split() == ["parent", child.split()[1], "1"]
    assert (ran.contexts, len(ran.said)) == ([1], 1)


USE = "import tensorflow as tf\ntf.random.uniform((2, 2))\n"


# What other launchers call them is decided on plain values (tests/selection).
def test_12_each_local_rank_has_a_gpu_of_its_own_and_one_speaks(train):
    run = train(Gpu(processes={5004242: "9GiB"}, utilization=90), Gpu(), Gpu())
    ranks = [run(USE, LOCAL_RANK=str(number), LOCAL_WORLD_SIZE="2") for number in range(2)]
    # The idlest, in the order of the pool.
    assert [ran.contexts for ran in ranks] == [[1], [2]]
    assert [len(ran.said) for ran in ranks] == [1, 0]


COUNT = "import tensorflow as tf\nprint(len(tf.config.list_physical_devices('GPU')))\ntf.random.uniform((2, 2))\n"


@pytest.mark.parametrize(
    ("value", "gpus"),
    [
        pytest.param("", [], id="empty"),
        pytest.param("-1", [], id="minus-one", marks=thorough),
        pytest.param("NoDevFiles", [], id="words", marks=thorough),
        pytest.param("{0}", [1], id="uuid-prefix", marks=thorough),
        pytest.param("{0},{1}", [1, 2], id="uuid-prefixes"),
        pytest.param("MIG-4d806f22-346a-5a1d-ba01-86b505cdf485", [], id="mig", marks=thorough),
        pytest.param("0,0", [], id="twice", marks=thorough),
        pytest.param("1,0", [0, 1], id="order"),
        pytest.param("0,-1,1", [0], id="cut"),
        pytest.param("7,0", [], id="too-high", marks=thorough),
    ],
)
def test_13_an_inherited_list_means_what_it_means_to_cuda(train, commands, value, gpus):
    run = train(Gpu(), Gpu(), Gpu())
    inherited = value.format(*[gpu.uuid[:12] for gpu in run.server.gpus[1:]])
    ran = run(COUNT, CUDA_VISIBLE_DEVICES=inherited)
    plain = run(COUNT, CUDA_VISIBLE_DEVICES=inherited, AUTOGPU="0")
    assert ran.stdout == plain.stdout == f"{len(gpus)}\n"
    # All of them without autogpu; with it one, and never another.
    assert plain.contexts == gpus
    assert len(ran.contexts) == min(1, len(gpus))
    assert set(ran.contexts) <= set(gpus)
    assert set(commands(run.server).pick(CUDA_VISIBLE_DEVICES=inherited)) <= set(gpus)


@pytest.mark.parametrize("order", ["1,0", "0,1"])
def test_13_ranks_count_an_inherited_list_in_its_order(train, order):
    run = train(Gpu(), Gpu(), Gpu())
    for rank, gpu in enumerate(order.split(",")):
        ran = run(USE, CUDA_VISIBLE_DEVICES=order, LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2")
        assert ran.contexts == [int(gpu)]


@pytest.mark.parametrize("denied", ["refuse", pytest.param("omit", marks=thorough)])
@pytest.mark.parametrize("task", [{}, {"SLURM_JOB_GPUS": "0"}], ids=["unnamed", "named"])
def test_14_a_job_whose_cgroup_allows_one_gpu_takes_that_one(train, commands, tmp_path, denied, task):
    run = train(Gpu(), Gpu(), Gpu(), device_files=device_files(tmp_path, 1), denied=denied)
    # No CUDA_VISIBLE_DEVICES, as where a site's settings keep it out.
    job = {"SLURM_JOB_ID": "7", "SLURM_NODEID": "0", "SLURM_GPUS_ON_NODE": "1", **task}
    ran = run(USE, **job)
    assert (ran.contexts, ran.stderr.count("Traceback")) == ([1], 0), ran.stderr
    assert commands(run.server)("pick", "--format", "uuid", **job).stdout.strip() == run.server.gpus[1].uuid


def test_15_where_no_process_is_listed_the_memory_says_who_is_busy(train, commands):
    # Pids of the host are hidden; the higher index would win a tie.
    run = train(Gpu(hide_processes=True), Gpu(hide_processes=True, processes={5004242: "9GiB"}))
    assert run(USE).contexts == [0]
    (idle, busy) = commands(run.server).status()["gpus"]
    assert (idle["state"], busy["state"]) == ("free", "busy")


def test_15_a_job_that_does_not_find_its_own_pid_keeps_its_limit(train):
    script = "import tensorflow as tf\nfor gib in (256, 640):\n    tf.raw_ops.Empty(shape=[gib, 1 << 18], dtype=1)\n"
    ran = train(Gpu(hide_processes=True))(script, AUTOGPU_LIMIT="1GiB")
    assert ran.contexts == [0]
    assert 0.6 * (1 << 30) < ran.allocated[0] <= 1 << 30
