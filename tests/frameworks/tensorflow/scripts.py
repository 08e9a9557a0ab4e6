"""Scripts that choose a GPU with TensorFlow as people have written them since 2017, keyed by name."""

from tests.support.patterns import setting

IMPORT = "import tensorflow as tf\n"

GRAPH = """
import tensorflow as tf
v1 = tf.compat.v1
with tf.Graph().as_default():
    tensors = []
    for device in {devices}:
        with tf.device(device):
            tensors.append(tf.raw_ops.Empty(shape=[512, 512], dtype=tf.float32))
    with v1.Session({proto}) as session:
        session.run([tensor.op for tensor in tensors])
"""


def graph(*devices: str | None, config: str = "") -> str:
    """Return a TensorFlow 1 script that runs a graph with a tensor on each device; ``None`` leaves one unplaced."""
    return GRAPH.format(devices=devices, proto=f"config=v1.ConfigProto({config})" if config else "")


NAMED_LATE = """
import tensorflow as tf
with tf.Graph().as_default():
    session = tf.compat.v1.Session()
    for number in range(2):
        with tf.device(f"/gpu:{number}"):
            part = tf.raw_ops.Empty(shape=[256, 256], dtype=tf.float32)
        session.run(part.op)
    session.close()
"""

# get_available_gpus() is a helper function of 2017.
COUNTS_AND_TAKES_ALL = """
import tensorflow as tf
from tensorflow.python.client import device_lib

def get_available_gpus():
    return [x.name for x in device_lib.list_local_devices() if x.device_type == "GPU"]

with tf.Graph().as_default():
    towers = []
    for name in get_available_gpus() or ["/cpu:0"]:
        with tf.device(name):
            towers.append(tf.raw_ops.Empty(shape=[256, 256], dtype=tf.float32))
    with tf.compat.v1.Session() as session:
        session.run([tower.op for tower in towers])
"""

# Keras had multi_gpu_model up to TensorFlow 2.3.
KERAS_MULTI_GPU_MODEL = """
import tensorflow as tf
from tensorflow.keras.utils import multi_gpu_model
with tf.device("/cpu:0"):
    model = tf.keras.Sequential([tf.keras.layers.Dense(4, input_shape=(8,))])
parallel_model = multi_gpu_model(model, gpus=2)
parallel_model.compile("sgd", "mse")
"""

COPIES_LATE = """
import tensorflow as tf
x = tf.ones((256, 256))
assert "GPU" in x.gpu(1).device

copied = tf.data.Dataset.from_tensors(x).apply(tf.data.experimental.copy_to_device("/gpu:1"))
assert all("GPU" in element.device for element in copied)

try:
    x.gpu(4)
except RuntimeError:
    pass
else:
    raise AssertionError("there are four")
"""

MIRRORED_TWO_NAMED = """
import tensorflow as tf
strategy = tf.distribute.MirroredStrategy(["/gpu:0", "/gpu:1"])
print(strategy.num_replicas_in_sync)
with strategy.scope():
    weights = tf.Variable(tf.random.normal([256, 256]))
"""

# From the guide of TensorFlow 2.
VISIBLE_LIST = """
import tensorflow as tf
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    tf.config.set_visible_devices(gpus[:2], "GPU")
    logical_gpus = tf.config.list_logical_devices("GPU")
    print(len(gpus), "Physical GPUs,", len(logical_gpus), "Logical GPU")
print(tf.random.uniform([100, 100]).device)
"""

SCRIPTS = {
    "copies_late": COPIES_LATE,
    "counts_and_takes_all": COUNTS_AND_TAKES_ALL,
    "device_count_2": graph("/gpu:0", "/gpu:1", config="device_count={'GPU': 2}, allow_soft_placement=True"),
    "device_gpu_0": graph("/gpu:0", config="log_device_placement=True, allow_soft_placement=True"),
    "graph_gpu_0_and_1": graph("/gpu:0", "/gpu:1", config="log_device_placement=False"),
    "graph_gpu_2": graph("/gpu:2"),
    "graph_named_late": NAMED_LATE,
    "keras_multi_gpu_model": KERAS_MULTI_GPU_MODEL,
    "mirrored_two_named": MIRRORED_TWO_NAMED,
    "multi_tower": graph("/device:GPU:2", "/device:GPU:3", config="log_device_placement=True"),
    "session_visible_list_2": graph(None, config="gpu_options=v1.GPUOptions(visible_device_list='2')"),
    "session_visible_list_none": graph("/cpu:0", config="gpu_options=v1.GPUOptions(visible_device_list='-1')"),
    "shell_only": graph(None),
    "visible_after_import": IMPORT + setting(CUDA_VISIBLE_DEVICES="0") + graph(None),
    "visible_before_import": setting(CUDA_DEVICE_ORDER="PCI_BUS_ID", CUDA_VISIBLE_DEVICES="2") + graph(None),
    "visible_empty_after_import": IMPORT + setting(CUDA_VISIBLE_DEVICES="") + graph(None),
    "visible_list": VISIBLE_LIST,
    "visible_minus_one_before_import": setting(CUDA_VISIBLE_DEVICES="-1") + graph(None),
}
