"""No card for this session, by a list. 1.15 to 2.21."""

import tensorflow as tf

v1 = tf.compat.v1

config = v1.ConfigProto()
config.gpu_options.visible_device_list = "-1"
with tf.Graph().as_default():
    with tf.device("/cpu:0"):
        weights = tf.zeros([256, 256])
    with v1.Session(config=config) as sess:
        sess.run(weights.op)
