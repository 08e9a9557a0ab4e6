"""The same fraction through GPUOptions, in one line. 1.15 to 2.21."""

import tensorflow as tf

v1 = tf.compat.v1

gpu_options = v1.GPUOptions(per_process_gpu_memory_fraction=0.333)
with tf.Graph().as_default():
    tables = tf.raw_ops.Empty(shape=[1280, 512, 512], dtype=tf.float32)
    sess = v1.Session(config=v1.ConfigProto(gpu_options=gpu_options))
    sess.run(tables.op)
