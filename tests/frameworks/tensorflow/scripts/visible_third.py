"""train.py --gpu 2. 2.x."""

import tensorflow as tf

gpus = tf.config.list_physical_devices("GPU")
tf.config.set_visible_devices(gpus[2], "GPU")
print(tf.random.uniform([100, 100]).device)
