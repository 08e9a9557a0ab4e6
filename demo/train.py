"""An ordinary Keras script: it selects no GPU, sets no memory option and contains no code for autogpu."""

import numpy as np
import tensorflow as tf

images = np.random.rand(2048, 28, 28, 1).astype("float32")
labels = np.random.randint(0, 10, size=2048)

model = tf.keras.Sequential(
    [
        tf.keras.layers.Input((28, 28, 1)),
        tf.keras.layers.Conv2D(32, 3, activation="relu"),
        tf.keras.layers.MaxPooling2D(),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(128, activation="relu"),
        tf.keras.layers.Dense(10),
    ]
)
model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(images, labels, batch_size=64, epochs=2, verbose=2)
