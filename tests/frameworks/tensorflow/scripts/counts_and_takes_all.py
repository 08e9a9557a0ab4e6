"""A helper of 2017: counts the cards, and builds a tower on each. 1.15 to 2.21."""

import tensorflow as tf
from tensorflow.python.client import device_lib


def get_available_gpus():
    return [x.name for x in device_lib.list_local_devices() if x.device_type == "GPU"]


with tf.Graph().as_default():
    towers = []
    for name in get_available_gpus() or ["/cpu:0"]:
        with tf.device(name):
            towers.append(
                tf.zeros([256, 256]) if "cpu" in name else tf.raw_ops.Empty(shape=[256, 256], dtype=tf.float32)
            )
    with tf.compat.v1.Session() as sess:
        sess.run([tower.op for tower in towers])
