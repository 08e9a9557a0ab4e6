"""Imports on top, as the linter wants it, and only then the choice. 1.15 to 2.21."""

import os

import tensorflow as tf

os.environ["CUDA_VISIBLE_DEVICES"] = "0"

with tf.Graph().as_default():
    w = tf.raw_ops.Empty(shape=[784, 100], dtype=tf.float32)
    with tf.compat.v1.Session() as sess:
        sess.run(w.op)
