"""The answer with "allocate at most 40 % of each GPU": per_process_gpu_memory_fraction = 0.4. 1.15 to 2.21."""

import tensorflow as tf

v1 = tf.compat.v1

config = v1.ConfigProto()
config.gpu_options.per_process_gpu_memory_fraction = 0.4
with tf.Graph().as_default():
    tables = tf.raw_ops.Empty(shape=[2304, 512, 512], dtype=tf.float32)
    sess = v1.Session(config=config)
    sess.run(tables.op)
