"""Data parallel as Keras 2 had it: multi_gpu_model on two GPUs. Up to 2.3, whose Keras has it."""

import tensorflow as tf
from tensorflow.keras.utils import multi_gpu_model

with tf.device("/cpu:0"):
    model = tf.keras.Sequential([tf.keras.layers.Dense(4, input_shape=(8,))])
parallel_model = multi_gpu_model(model, gpus=2)
parallel_model.compile("sgd", "mse")
