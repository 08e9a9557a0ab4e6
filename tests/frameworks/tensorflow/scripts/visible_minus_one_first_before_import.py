"""Somebody who adds -1 to a list "to keep the CPU as well": CUDA ends its list there. 2.x."""

import os

os.environ["CUDA_VISIBLE_DEVICES"] = "-1,0"
import tensorflow as tf

print(tf.config.list_physical_devices("GPU"))
print(tf.constant(1) + tf.constant(1))
