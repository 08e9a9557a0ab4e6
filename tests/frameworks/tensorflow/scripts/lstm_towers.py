"""An encoder on one GPU, a decoder on the next, as sequence-to-sequence code of 2018 has it. 2.x."""

import tensorflow as tf

with tf.device("/gpu:0"):
    encoder = tf.keras.layers.LSTM(8, return_sequences=True)
    states = encoder(tf.random.normal([4, 5, 3]))
with tf.device("/gpu:1"):
    decoder = tf.keras.layers.LSTM(8)
    print(decoder(states).device)
