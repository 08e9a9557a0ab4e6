"""Scripts that name more devices than the process has GPUs: replicas, hard placement, names that come late."""

import textwrap

import pytest

from tests.gpusim import Gpu

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]


def test_hook_on_context_device_is_removed_after_the_first_context(host):
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
def test_replicas_that_share_a_card_do_not_use_nccl(host, count, way):
    job = host(*[Gpu()] * 4, script=REPLICAS)(AUTOGPU_COUNT=count)
    assert job.ready() == f"ready 4 {way}"
    assert job.ready() == "4"


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
def test_late_device_name_does_not_raise_without_soft_placement(host, count, device):
    job = host(*[Gpu()] * 2, script=PLACED_HARD_LATE)(AUTOGPU_COUNT=count)
    assert job.ready() == f"ready {device} {count == '1'}"
    # If the process has all GPUs, autogpu leaves the script's setting in force.
    assert job.ready() == ("raised" if count == "all" else "")


THREADS = """
import threading
import tensorflow as tf
tf.zeros([1])

def work(number):
    with tf.device(f"/GPU:{number}"):
        tf.zeros([1])

threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1, 1, 1)]
for thread in threads:
    thread.start()
    thread.join()
"""

# NCCL refuses two ranks on one card. Without autogpu each tower has a card of its own.
TOWERS = """
import tensorflow as tf
from tensorflow.python.ops import nccl_ops
v1 = tf.compat.v1
v1.disable_eager_execution()
with v1.Session() as session:
    session.run(tf.constant(1) + 1)
    towers = []
    for number in range(2):
        with tf.device("/gpu:%d" % number):
            towers.append(tf.ones([4]))
    try:
        session.run(nccl_ops.all_sum(towers))
        print("done")
    except tf.errors.InternalError as error:
        print("invalid usage" in str(error))
"""

IN_A_FUNCTION = """
import tensorflow as tf
tf.zeros([1])

@tf.function
def work():
    with tf.device("/gpu:1"):
        return tf.zeros([1])

work()
"""

LATE = "autogpu: the script names '/gpu:1' after TensorFlow has started with 1 GPU; to start with 2: AUTOGPU_COUNT=2"


@pytest.mark.parametrize("script", [THREADS, IN_A_FUNCTION], ids=["threads", "function"])
def test_first_late_device_name_prints_one_line(run, script):
    assert run(script).said[1:] == [LATE]
    assert len(run(script, AUTOGPU_COUNT="2").said) == 1
    assert run(script, AUTOGPU_LEVEL="quiet").said == []


@pytest.mark.parametrize(("count", "printed", "lines"), [("1", "True", [LATE]), ("2", "done", [])])
def test_message_about_towers_built_late_contains_the_needed_count(run, count, printed, lines):
    ran = run(TOWERS, AUTOGPU_COUNT=count)
    assert (ran.stdout, ran.said[1:]) == (printed + "\n", lines)


EARLY_MESH = """
import tensorflow as tf
from tensorflow.experimental import dtensor
mesh = dtensor.create_mesh([("batch", 2)], devices=["GPU:0", "GPU:1"])
layout = dtensor.Layout(["batch", "unsharded"], mesh)
print(dtensor.call_with_layout(tf.ones, layout, shape=(4, 2)).shape)
"""


def test_dtensor_mesh_gets_the_gpus_that_it_names(run):
    ran = run(EARLY_MESH)
    assert (ran.stdout, len(ran.contexts)) == ("(4, 2)\n", 2)
