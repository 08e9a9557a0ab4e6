"""Copies to the second card by name, of a tensor and of a dataset, when TensorFlow has begun. 2.4 to 2.21."""

import tensorflow as tf

x = tf.ones((256, 256))
assert "GPU" in x.gpu(1).device

copied = tf.data.Dataset.from_tensors(x).apply(tf.data.experimental.copy_to_device("/gpu:1"))
assert all("GPU" in element.device for element in copied)

try:
    x.gpu(4)
except RuntimeError:
    pass
else:
    raise AssertionError("there are four")
