"""Two cards, by number alone. 1.15 to 2.21."""

import tensorflow as tf

v1 = tf.compat.v1

with tf.Graph().as_default():
    towers = []
    for number in range(2):
        with tf.device(f"/gpu:{number}"):
            towers.append(tf.raw_ops.Empty(shape=[256, 256], dtype=tf.float32))
    config = v1.ConfigProto(device_count={"GPU": 2}, allow_soft_placement=True)
    with v1.Session(config=config) as sess:
        sess.run([tower.op for tower in towers])
