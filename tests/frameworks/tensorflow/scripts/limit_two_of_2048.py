"""The guide's two virtual GPUs on one card, to try a strategy with. 2.x."""

import tensorflow as tf

gpus = tf.config.list_physical_devices("GPU")
if gpus:
    tf.config.set_logical_device_configuration(
        gpus[0],
        [
            tf.config.LogicalDeviceConfiguration(memory_limit=2048),
            tf.config.LogicalDeviceConfiguration(memory_limit=2048),
        ],
    )
    tf.config.set_visible_devices(gpus[0], "GPU")
for gpu in tf.config.list_logical_devices("GPU"):
    with tf.device(gpu.name):
        print(tf.random.normal([100, 100]).device)
