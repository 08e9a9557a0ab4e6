"""Devices that a script names while the process has fewer GPUs: replicas, readings, hard placement."""

import textwrap

import pytest

from tests.gpusim import Gpu

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]


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

# On one card NCCL refuses two ranks: without autogpu each tower has a card.
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
def test_first_late_name_prints_one_line(run, script):
    assert run(script).said[1:] == [LATE]
    assert len(run(script, AUTOGPU_COUNT="2").said) == 1
    assert run(script, AUTOGPU_LEVEL="quiet").said == []


@pytest.mark.parametrize(("count", "printed", "lines"), [("1", "True", [LATE]), ("2", "done", [])])
def test_towers_that_are_built_late_print_the_count_that_they_need(run, count, printed, lines):
    ran = run(TOWERS, AUTOGPU_COUNT=count)
    assert (ran.stdout, ran.said[1:]) == (printed + "\n", lines)


EARLY_MESH = """
import tensorflow as tf
from tensorflow.experimental import dtensor
mesh = dtensor.create_mesh([("batch", 2)], devices=["GPU:0", "GPU:1"])
layout = dtensor.Layout(["batch", "unsharded"], mesh)
print(dtensor.call_with_layout(tf.ones, layout, shape=(4, 2)).shape)
"""


def test_mesh_of_dtensor_names_gpus(run):
    ran = run(EARLY_MESH)
    assert (ran.stdout, len(ran.contexts)) == ("(4, 2)\n", 2)
