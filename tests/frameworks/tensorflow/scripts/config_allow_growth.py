"""The most copied answer of all: config.gpu_options.allow_growth = True. 1.15 to 2.21."""

import tensorflow as tf

v1 = tf.compat.v1

config = v1.ConfigProto()
config.gpu_options.allow_growth = True
with tf.Graph().as_default():
    x = tf.raw_ops.Empty(shape=[512, 512], dtype=tf.float32)
    with v1.Session(config=config) as session:
        session.run(x.op)
