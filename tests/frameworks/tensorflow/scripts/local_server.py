"""The first page of "Distributed TensorFlow": a local server and a session on it. 1.15 to 2.21."""

import tensorflow as tf

v1 = tf.compat.v1

with tf.Graph().as_default():
    c = tf.raw_ops.Empty(shape=[128, 128], dtype=tf.float32)
    server = v1.train.Server.create_local_server()
    with v1.Session(server.target) as sess:
        sess.run(c.op)
