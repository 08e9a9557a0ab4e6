"""The third card of the lab, with soft placement for machines that have fewer. 1.15 to 2.21."""

import tensorflow as tf

v1 = tf.compat.v1

with tf.Graph().as_default():
    with tf.device("/gpu:2"):
        weights = tf.raw_ops.Empty(shape=[256, 256], dtype=tf.float32)
    config = v1.ConfigProto(allow_soft_placement=True)
    with v1.Session(config=config) as sess:
        sess.run(weights.op)
