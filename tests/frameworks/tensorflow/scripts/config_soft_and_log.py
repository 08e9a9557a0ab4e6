"""The TF 1 boilerplate that says nothing of memory: soft placement and a log of it. 1.15 to 2.21."""

import tensorflow as tf

v1 = tf.compat.v1

session_conf = v1.ConfigProto(allow_soft_placement=True, log_device_placement=True)
with tf.Graph().as_default():
    embedding = tf.raw_ops.Empty(shape=[10000, 128], dtype=tf.float32)
    sess = v1.Session(config=session_conf)
    with sess.as_default():
        sess.run(embedding.op)
