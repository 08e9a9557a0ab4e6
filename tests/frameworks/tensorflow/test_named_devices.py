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
