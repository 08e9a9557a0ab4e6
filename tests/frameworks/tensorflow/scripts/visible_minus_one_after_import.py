"""CPU only, decided after the import. 2.x."""

import os

import tensorflow as tf

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
assert not tf.config.list_physical_devices("GPU")
print(tf.constant(1) + 1)
