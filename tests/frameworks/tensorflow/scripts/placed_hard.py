"""Nothing is to run elsewhere than it says; the second card is named when the first is in use. 2.x."""

import tensorflow as tf

tf.config.set_soft_device_placement(False)
with tf.device("/gpu:0"):
    first = tf.random.normal([256, 256])
with tf.device("/gpu:1"):
    second = tf.random.normal([256, 256])
print(first.device, second.device)
