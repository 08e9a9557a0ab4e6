"""What people paste to see whether TensorFlow finds the cards. 1.15 to 2.21."""

import tensorflow as tf
from tensorflow.python.client import device_lib

print(len([x for x in device_lib.list_local_devices() if x.device_type == "GPU"]))
print(tf.test.gpu_device_name())
print(tf.test.is_gpu_available(min_cuda_compute_capability=(6, 0)))
