"""Whoever chooses in the shell, CUDA_VISIBLE_DEVICES=1,2 python train.py, says nothing in the script. 1.15 to 2.21."""

import tensorflow as tf

v1 = tf.compat.v1

with tf.Graph().as_default():
    a = tf.raw_ops.Empty(shape=[1024, 1024], dtype=tf.float32)
    with v1.Session() as sess:
        print(sess.list_devices())
        sess.run(a.op)
