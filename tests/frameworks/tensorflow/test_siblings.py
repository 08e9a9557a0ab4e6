"""Jobs of one person, each of which names a GPU by number, and what others leave to them."""

from __future__ import annotations

import textwrap

import pytest

from tests.gpusim import Gpu
from tests.support.live_jobs import GIB, HOLD, claims, leases

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


def test_a_loop_over_all_numbers_uses_all_gpus_however_far_apart(host, folder):
    start = host(*[Gpu()] * 4, script=NUMBER_OF_ARGUMENT)
    jobs = []
    for number in range(4):
        # Each sees the ones before it at work, and counts in another order.
        jobs.append(start(str(number)))
        assert jobs[-1].ready() == "ready 4 1"
    assert sorted(gpu for job in jobs for gpu in job.gpus()) == [0, 1, 2, 3]
    assert claims(folder, start.server) == {job.pid: {job.gpus()[0]: 24.0} for job in jobs}
    had = [job.gpus() for job in jobs]
    ended = [job.end() for job in jobs]
    assert [status for status, _ in ended] == [0] * 4
    assert [sorted({c.gpu for c in start.server.calls(pid=job.pid, call="context")}) for job in jobs] == had
    assert all("of 4, named by the script" in lines[0] for _, lines in ended)


def test_a_loop_in_the_same_instant_uses_all_gpus(host):
    start = host(*[Gpu()] * 4, script=NUMBER_OF_ARGUMENT)
    jobs = [start(str(number)) for number in range(4)]
    assert [job.ready() for job in jobs] == ["ready 4 1"] * 4
    assert sorted(gpu for job in jobs for gpu in job.gpus()) == [0, 1, 2, 3]


def test_pairs_of_numbers_are_pairs_of_gpus(host):
    start = host(*[Gpu()] * 4, script=NUMBER_OF_ARGUMENT)
    first = start("0", "1")
    assert first.ready() == "ready 4 2"
    second = start("0", "1")
    assert second.ready() == "ready 4 2"
    assert sorted(first.gpus() + second.gpus()) == [0, 1, 2, 3]


LAUNCHER = """
import subprocess, sys
import tensorflow as tf
jobs = []
for number in range(4):
    job = subprocess.Popen([sys.executable, "-c", {script!r}, str(number)], stdin=-1, stdout=-1, stderr=-1, text=True)
    jobs.append(job)
    assert job.stdout.readline() == "ready 4 1\\n", job.stderr.read()
print("ready", *[job.pid for job in jobs], flush=True)
sys.stdin.read()
for job in jobs:
    job.communicate()
"""


def test_a_launcher_that_has_imported_the_framework_changes_nothing(host):
    start = host(*[Gpu()] * 4, script=LAUNCHER.format(script=NUMBER_OF_ARGUMENT))
    launcher = start()
    _, *pids = launcher.ready().split()
    contexts = start.server.contexts()
    assert sorted(gpu for pid in pids for gpu in contexts[int(pid)]) == [0, 1, 2, 3]
    # All count in one order, that of their parent: each number is its own GPU.
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


def test_a_rank_that_counts_gpus_in_a_child_counts_all(host, folder):
    start = host(*[Gpu()] * 4, script=COUNTS)
    rank = start(OMPI_COMM_WORLD_LOCAL_RANK="1", OMPI_COMM_WORLD_LOCAL_SIZE="2")
    assert rank.ready() == "ready 4"
    assert rank.ready() == "took"
    # Ranks count the pool in its own order.
    assert (rank.gpus(), list(claims(folder, start.server))) == ([1], [rank.pid])


FRACTION = HOLD.replace(
    "with tf",
    "config = tf.compat.v1.ConfigProto()\n"
    "config.gpu_options.per_process_gpu_memory_fraction = float(sys.argv[1])\n"
    "tf.compat.v1.Session(config=config)\n"
    "with tf",
)


def test_what_scripts_allow_themselves_is_never_more_than_a_gpu_has(host, folder):
    start = host(Gpu(memory="16GiB"), script=FRACTION)
    first, second = [start("0.6", AUTOGPU_LIMIT="2GiB") for _ in range(2)]
    assert [first.ready(), second.ready()] == ["ready GPU:0"] * 2
    claimed = sorted(claims(folder, start.server).values(), key=lambda claim: claim[0])
    assert claimed == [{0: 0.0}, {0: 9.85}]
    allowed = sorted((lines[0], status) for status, lines in (first.end(), second.end()))
    assert "memory limited by the script to 60% of each GPU" in allowed[0][0] + allowed[1][0]
    assert "what the script itself allows does not fit" in allowed[0][0] + allowed[1][0]


def test_a_script_that_allows_itself_most_of_a_shared_gpu_is_capped(host):
    start = host(Gpu(processes={5000007: "14GiB"}, utilization=90), script=FRACTION)
    job = start("0.9")
    assert job.ready() == "ready GPU:0"
    assert job.allocated() <= 5 * GIB
    (line,) = job.end()[1]
    assert "memory limited by the script to 5120 MiB" in line


HARD_CODED = "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = {value!r}\n" + HOLD
BUSY = Gpu(processes={5000007: "14GiB"}, utilization=99)


def test_a_busy_gpu_that_a_script_hard_codes_is_had_with_a_remedy(host):
    start = host(BUSY, *[Gpu()] * 3, script=HARD_CODED.format(value="0"))
    job = start(CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert job.ready() == "ready GPU:0"
    assert job.gpus() == [0]
    (line,) = job.end()[1]
    assert "busy while GPU 1, GPU 2 and GPU 3 are idle" in line
    assert line.endswith("; to have the idlest instead: AUTOGPU_SCRIPT=override")
    again = start(CUDA_DEVICE_ORDER="PCI_BUS_ID", AUTOGPU_SCRIPT="override")
    assert again.ready() == "ready GPU:0"
    assert again.gpus() == [3]


@pytest.mark.parametrize("value", ["", "-1"])
def test_a_script_that_wants_no_gpu_has_none_under_override(host, folder, value):
    start = host(Gpu(), script=HARD_CODED.format(value=value))
    job = start(AUTOGPU_SCRIPT="override")
    assert job.ready() == "ready CPU:0"
    assert (job.gpus(), leases(folder), job.end()) == ([], {}, (0, []))


def test_a_list_that_matches_nothing_is_never_silent(host):
    start = host(*[Gpu(name="NVIDIA TITAN RTX")] * 2)
    job = start(AUTOGPU_DEVICES="A100")
    assert job.ready() == "ready CPU:0"
    status, lines = job.end()
    assert status == 0
    assert [line.partition(": ")[2][:40] for line in lines] == [
        "select.devices = A100 (AUTOGPU_DEVICES) ",
        "no GPU for this process, TensorFlow star",
    ]
    refused = start(AUTOGPU_DEVICES="A100", AUTOGPU_BUSY="error")
    assert refused.ready() == ""
    _, errors = refused.process.communicate(timeout=120)
    assert refused.process.returncode == 1
    assert errors.splitlines()[-1].startswith("autogpu.errors.NoEligibleDevice: no GPU is suitable (GPU 0: not among")


def test_after_the_first_context_a_device_is_the_frameworks_own_function(host):
    script = textwrap.dedent(
        """
        import tensorflow as tf
        from tensorflow.python.eager import context
        noted = context.device
        with tf.device("/gpu:1"):
            x = tf.random.uniform((2, 2))
        own = context.device
        print("ready", noted is not own, own.__code__.co_filename == context.__file__, hasattr(own, "__wrapped__"))
        """
    )
    job = host(*[Gpu()] * 2, script=script)()
    assert job.ready() == "ready True True False"


REPLICAS = """
import tensorflow as tf
strategy = tf.distribute.MirroredStrategy(["/gpu:%d" % number for number in range(4)])
print("ready", strategy.num_replicas_in_sync, strategy.extended._communication_options.implementation.value)
print(len(tf.config.list_physical_devices("GPU")))
"""


@pytest.mark.parametrize(("count", "way"), [("1", "RING"), ("2", "RING"), ("4", "NCCL")])
def test_replicas_on_one_card_do_without_nccl_which_needs_a_card_each(host, count, way):
    job = host(*[Gpu()] * 4, script=REPLICAS)(AUTOGPU_COUNT=count)
    assert job.ready() == f"ready 4 {way}"
    assert job.ready() == "4"


READS_MEMORY = """
import tensorflow as tf
read = tf.config.experimental
x = tf.zeros((1024, 1024))
print("ready", [read.get_memory_info(f"GPU:{number}")["current"] >> 20 for number in range(4)], flush=True)
read.reset_memory_stats("GPU:3")
try:
    read.get_memory_info("GPU:4")
except ValueError:
    print("raised")
"""


def test_memory_can_be_read_of_each_gpu_that_there_would_be(host):
    job = host(*[Gpu()] * 4, script=READS_MEMORY)()
    assert (job.ready(), job.ready()) == ("ready [4, 0, 0, 0]", "raised")


PLACED_HARD_LATE = """
import tensorflow as tf
x = tf.ones((3, 3))
tf.config.set_soft_device_placement(False)
with tf.device("/gpu:1"):
    y = tf.matmul(x, x)
print("ready", y.device[-5:], tf.config.get_soft_device_placement(), flush=True)
try:
    with tf.device("/gpu:0"):
        tf.strings.join(["a", "b"])
except tf.errors.InvalidArgumentError:
    print("raised", flush=True)
"""


@pytest.mark.parametrize(("count", "device"), [("1", "GPU:0"), ("all", "GPU:1")])
def test_a_late_name_does_not_raise_either_where_soft_placement_is_turned_off(host, count, device):
    job = host(*[Gpu()] * 2, script=PLACED_HARD_LATE)(AUTOGPU_COUNT=count)
    assert job.ready() == f"ready {device} {count == '1'}"
    # With all GPUs there, the script's word is TensorFlow's.
    assert job.ready() == ("raised" if count == "all" else "")
