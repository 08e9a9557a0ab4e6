"""tf.data or TensorFlow Datasets beside JAX or PyTorch: hide all GPUs from TensorFlow. 2.x."""

import tensorflow as tf

tf.config.set_visible_devices([], "GPU")
print(list(tf.data.Dataset.range(3).as_numpy_iterator()))
