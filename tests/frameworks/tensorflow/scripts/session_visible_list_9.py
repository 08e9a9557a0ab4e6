"""A list for a machine with ten cards. 1.15 to 2.21."""

import tensorflow as tf

v1 = tf.compat.v1

config = v1.ConfigProto()
config.gpu_options.visible_device_list = "0,9"
with tf.Graph().as_default():
    weights = tf.raw_ops.Empty(shape=[256, 256], dtype=tf.float32)
    with v1.Session(config=config) as sess:
        sess.run(weights.op)
