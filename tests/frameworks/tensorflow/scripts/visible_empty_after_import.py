"""The empty string instead of -1. 1.15 to 2.21."""

import os

import tensorflow as tf

os.environ["CUDA_VISIBLE_DEVICES"] = ""

with tf.Graph().as_default(), tf.compat.v1.Session() as sess:
    print(sess.run(tf.constant([1.0, 2.0]) + 1.0))
