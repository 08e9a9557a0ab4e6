"""Two replicas, by name. 2.x."""

import tensorflow as tf

strategy = tf.distribute.MirroredStrategy(["/gpu:0", "/gpu:1"])
print(strategy.num_replicas_in_sync)
with strategy.scope():
    weights = tf.Variable(tf.random.normal([256, 256]))
