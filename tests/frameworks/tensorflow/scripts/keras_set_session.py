"""Keras on TF 1: a session with allow_growth, handed to the backend. 1.15 to 2.15, whose Keras has sessions."""

import tensorflow as tf

v1 = tf.compat.v1
v1.disable_eager_execution()

config = v1.ConfigProto()
config.gpu_options.allow_growth = True
v1.keras.backend.set_session(v1.Session(config=config))

x = tf.raw_ops.Empty(shape=[32, 32], dtype=tf.float32)
v1.keras.backend.get_session().run(x.op)
