"""Towers on the third and fourth card, as in the CIFAR-10 multi-GPU tutorial; needs all four. 1.15 to 2.21."""

import tensorflow as tf

v1 = tf.compat.v1

with tf.Graph().as_default():
    towers = []
    for d in ["/device:GPU:2", "/device:GPU:3"]:
        with tf.device(d):
            towers.append(tf.raw_ops.Empty(shape=[1024, 1024], dtype=tf.float32))
    with v1.Session(config=v1.ConfigProto(log_device_placement=True)) as sess:
        sess.run([tower.op for tower in towers])
