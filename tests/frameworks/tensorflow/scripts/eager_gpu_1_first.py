"""The second card, in the first line that needs one. 2.x."""

import tensorflow as tf

with tf.device("/gpu:1"):
    weights = tf.random.normal([256, 256])
print(weights.device)
