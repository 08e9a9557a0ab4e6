"""Model parallel: half of a graph on each of two cards. 1.15 to 2.21."""

import tensorflow as tf

v1 = tf.compat.v1

with tf.Graph().as_default():
    halves = []
    for number in range(2):
        with tf.device(f"/gpu:{number}"):
            halves.append(tf.raw_ops.Empty(shape=[256, 256], dtype=tf.float32))
    with v1.Session(config=v1.ConfigProto(log_device_placement=False)) as sess:
        sess.run([half.op for half in halves])
