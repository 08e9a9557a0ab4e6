"""The Keras forum's way to force the CPU. 1.15 to 2.21."""

import os

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
import tensorflow as tf

with tf.Graph().as_default(), tf.compat.v1.Session() as sess:
    print(sess.run(tf.constant(2.0) * tf.constant(3.0)))
