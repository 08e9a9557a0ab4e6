"""The 2017 habit: pick the GPU by hand, above the import. 2.x."""

import os

os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
os.environ["CUDA_VISIBLE_DEVICES"] = "2"

import tensorflow as tf

x = tf.random.normal([512, 512])
print(tf.reduce_sum(tf.matmul(x, x)).device)
