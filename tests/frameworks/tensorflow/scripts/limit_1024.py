"""The TF 2 guide's second way: a hard limit of 1 GB on the first GPU. 2.x."""

import tensorflow as tf

gpus = tf.config.list_physical_devices("GPU")
if gpus:
    try:
        tf.config.set_logical_device_configuration(gpus[0], [tf.config.LogicalDeviceConfiguration(memory_limit=1024)])
    except RuntimeError as e:
        print(e)
print(tf.random.normal([100, 100]).device)
