"""Every second TF 2 answer: with tf.device("/gpu:0"). 2.x."""

import tensorflow as tf

with tf.device("/gpu:0"):
    a = tf.random.normal([1000, 1000])
    b = tf.matmul(a, a)
print(b.shape)
