"""The list that begins with -1, after the import. 1.15 to 2.21."""

import os

import tensorflow as tf

os.environ["CUDA_VISIBLE_DEVICES"] = "-1,0"
print(tf.config.experimental.list_physical_devices("GPU"))
