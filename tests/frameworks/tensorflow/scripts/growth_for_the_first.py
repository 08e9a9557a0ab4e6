"""YOLOv3 repositories: growth on physical_devices[0] alone. Plain TensorFlow refuses this where there are more. 2.x."""

import tensorflow as tf

physical_devices = tf.config.experimental.list_physical_devices("GPU")
if len(physical_devices) > 0:
    tf.config.experimental.set_memory_growth(physical_devices[0], True)
print(tf.reduce_sum(tf.random.normal([100, 100])).device)
