"""A notebook's order: the session first, the graph on two cards after it. 1.15 to 2.21."""

import tensorflow as tf

v1 = tf.compat.v1

with tf.Graph().as_default():
    sess = v1.Session()
    for number in range(2):
        with tf.device(f"/gpu:{number}"):
            part = tf.raw_ops.Empty(shape=[256, 256], dtype=tf.float32)
        sess.run(part.op)
    sess.close()
