"""The TensorFlow guide of 2017, "Using GPUs": pin to the first. 1.15 to 2.21."""

import tensorflow as tf

v1 = tf.compat.v1

with tf.Graph().as_default():
    with tf.device("/gpu:0"):
        a = tf.raw_ops.Empty(shape=[2, 3], dtype=tf.float32, name="a")
    sess = v1.Session(config=v1.ConfigProto(log_device_placement=True, allow_soft_placement=True))
    sess.run(a.op)
    sess.close()
