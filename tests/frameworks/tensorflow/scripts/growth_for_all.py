"""The TF 2 guide's loop over all GPUs. 2.x."""

import tensorflow as tf

gpus = tf.config.list_physical_devices("GPU")
if gpus:
    try:
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError as e:
        print(e)
model = tf.keras.Sequential([tf.keras.Input((8,)), tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(tf.ones([32, 8]), tf.ones([32, 1]), verbose=0)
