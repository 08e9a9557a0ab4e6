"""Jobs of one user that choose their GPUs by number get different GPUs while there are idle ones."""

import json

import pytest

from tests.gpusim import Gpu
from tests.support.live_jobs import GPU_OF_NUMBER, claims

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]

NUMBER_OF_ARGUMENT = """
import sys
import tensorflow as tf
gpus = tf.config.list_physical_devices("GPU")
tf.config.set_visible_devices([gpus[int(number)] for number in sys.argv[1:]], "GPU")
x = tf.random.uniform((256, 256))
print("ready", len(gpus), len(tf.config.list_logical_devices("GPU")), flush=True)
sys.stdin.read()
y = tf.random.uniform((256, 256))
"""


# The only small card is the fourth in every order.
MIXED = (Gpu(memory="11GiB"), *[Gpu(memory="24GiB")] * 3)


@pytest.mark.parametrize("is_at_once", [True, False], ids=["at-once", "one-after-another"])
def test_jobs_numbered_0_to_3_share_no_gpu(is_at_once, host, lease_folder):
    start = host(*[Gpu()] * 4, script=NUMBER_OF_ARGUMENT)
    jobs = []
    for number in range(4):
        jobs.append(start(str(number)))
        if not is_at_once:
            # Each job sees the earlier jobs at work, so its order of the GPUs is different.
            assert jobs[-1].ready() == "ready 4 1"
    if is_at_once:
        assert [job.ready() for job in jobs] == ["ready 4 1"] * 4
    assert sorted(gpu for job in jobs for gpu in job.gpus()) == [0, 1, 2, 3]
    assert claims(lease_folder, start.server) == {job.pid: {job.gpus()[0]: 24.0} for job in jobs}
    had = [job.gpus() for job in jobs]
    ended = [job.end() for job in jobs]
    assert [status for status, _ in ended] == [0] * 4
    assert [sorted({c.gpu for c in start.server.calls(pid=job.pid, call="context")}) for job in jobs] == had
    assert all(", numbered 3 in the script" in lines[0] for _, lines in ended[3:])


@pytest.mark.parametrize(("numbers", "gpus"), [(("3",), [3]), (("1", "3"), [2, 3])], ids=["one-number", "two-numbers"])
def test_number_does_not_mean_the_smallest_card_while_another_is_free(numbers, gpus, host):
    start = host(*MIXED, script=NUMBER_OF_ARGUMENT)
    job = start(*numbers)
    assert job.ready() == f"ready 4 {len(numbers)}"
    assert sorted(job.gpus()) == gpus


def test_two_jobs_that_use_numbers_0_and_1_share_no_gpu(host):
    start = host(*[Gpu()] * 4, script=NUMBER_OF_ARGUMENT)
    first = start("0", "1")
    assert first.ready() == "ready 4 2"
    second = start("0", "1")
    assert second.ready() == "ready 4 2"
    assert sorted(first.gpus() + second.gpus()) == [0, 1, 2, 3]


# The worker runs this module again, as each start with the method "spawn" does.
WORKER = """
import multiprocessing, os
import tensorflow as tf
gpus = tf.config.list_physical_devices("GPU")
tf.config.set_visible_devices(gpus[2], "GPU")

def work():
    tf.random.uniform((256, 256))
    os.write(1, f"{os.getpid()}\\n".encode())

if __name__ == "__main__":
    tf.random.uniform((256, 256))
    worker = multiprocessing.get_context("spawn").Process(target=work)
    worker.start()
    worker.join()
"""


def test_worker_with_its_parents_number_gets_its_parents_gpu(host):
    start = host(*[Gpu()] * 4, script=WORKER)
    parent = start()
    worker = int(parent.ready())
    assert parent.end()[0] == 0
    assert {call.gpu for pid in (parent.pid, worker) for call in start.server.calls(pid=pid, call="context")} == {3}


LAUNCHER = """
import subprocess, sys
import tensorflow as tf
jobs = []
for number in reversed(range(4)):
    job = subprocess.Popen([sys.executable, "-c", {script!r}, str(number)], stdin=-1, stdout=-1, stderr=-1, text=True)
    jobs.append(job)
    assert job.stdout.readline() == "ready 4 1\\n", job.stderr.read()
print("ready", *[job.pid for job in jobs], flush=True)
sys.stdin.read()
for job in jobs:
    job.communicate()
"""


@pytest.mark.thorough
def test_launcher_that_has_imported_tensorflow_takes_no_gpu_from_its_jobs(host):
    start = host(*[Gpu()] * 4, script=LAUNCHER.format(script=NUMBER_OF_ARGUMENT))
    launcher = start()
    _, *pids = launcher.ready().split()
    contexts = start.server.contexts()
    assert sorted(gpu for pid in pids for gpu in contexts[int(pid)]) == [0, 1, 2, 3]
    # The launcher has claimed nothing, so each job takes the idlest GPU.
    assert [contexts[int(pid)] for pid in pids] == [[3], [2], [1], [0]]
    assert launcher.end()[0] == 0


COUNTS = """
import subprocess, sys
count = "from tensorflow.python.client import device_lib;" \\
    "print(len([d for d in device_lib.list_local_devices() if d.device_type == 'GPU']))"
print("ready", subprocess.check_output([sys.executable, "-c", count]).decode().strip(), flush=True)
import tensorflow as tf
gpus = tf.config.list_physical_devices("GPU")
tf.config.set_visible_devices(gpus[1], "GPU")
tf.random.uniform((256, 256))
print("took", flush=True)
sys.stdin.read()
"""


@pytest.mark.thorough
def test_rank_that_counts_gpus_in_a_child_counts_all_of_them(host, lease_folder):
    start = host(*[Gpu()] * 4, script=COUNTS)
    rank = start(OMPI_COMM_WORLD_LOCAL_RANK="1", OMPI_COMM_WORLD_LOCAL_SIZE="2")
    assert rank.ready() == "ready 4"
    assert rank.ready() == "took"
    # The two ranks claim two GPUs together; rank 1 uses the second of them.
    assert (rank.gpus(), claims(lease_folder, start.server)) == ([3], {rank.pid: {2: 24.0, 3: 24.0}})


BUSY = Gpu(processes={5004242: "1GiB"}, utilization=90)
CLUSTER = {"worker": ["127.0.0.1:29990", "127.0.0.1:29991"]}
INDEX = "json.loads(os.environ['TF_CONFIG'])['task']['index']"


@pytest.mark.parametrize("script", GPU_OF_NUMBER.values(), ids=GPU_OF_NUMBER)
@pytest.mark.parametrize("starts", [[(0, 1)], [(1,), (0,)], [(0,), (1,)]], ids=["at-once", "0-later", "1-later"])
def test_cluster_tasks_that_use_the_gpu_of_their_index_get_idle_gpus(host, script, starts):
    start = host(BUSY, Gpu(), BUSY, Gpu(), script=script.format(number=INDEX))
    on = {}
    for indices in starts:
        tasks = [{"type": "worker", "index": index} for index in indices]
        jobs = [start(TF_CONFIG=json.dumps({"cluster": CLUSTER, "task": task})) for task in tasks]
        assert [job.ready() for job in jobs] == [f"{index} {job.pid}" for index, job in zip(indices, jobs)]
        on.update(zip(indices, [job.gpus() for job in jobs]))
    assert on == {0: [1], 1: [3]}
