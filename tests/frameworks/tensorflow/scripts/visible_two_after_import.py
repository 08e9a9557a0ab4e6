"""Two of the lab's GPUs, written into the script after the import. 2.x."""

import os

import tensorflow as tf

os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
os.environ["CUDA_VISIBLE_DEVICES"] = "1,2"

print(len(tf.config.list_physical_devices("GPU")), "GPUs")
print(tf.reduce_mean(tf.random.uniform([1000, 1000])).device)
