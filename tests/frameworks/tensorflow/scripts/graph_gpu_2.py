"""The third card, and no soft placement: a graph of TensorFlow 1. 1.15 to 2.21."""

import tensorflow as tf

with tf.Graph().as_default():
    with tf.device("/gpu:2"):
        weights = tf.raw_ops.Empty(shape=[256, 256], dtype=tf.float32)
    with tf.compat.v1.Session() as sess:
        sess.run(weights.op)
