"""Training on unmodified TensorFlow on the simulated GPU server. Numbers are garbage there: nothing looks at a loss."""

from __future__ import annotations

import pytest

from tests.support.tensorflow_runner import GROWTH, IN_CUDAS_ORDER, script

# The newest trains in tests/simulator/test_tensorflow.py.
pytestmark = [pytest.mark.matrix, pytest.mark.turns(4)]

FIRST = IN_CUDAS_ORDER[0]

TRAINING = """
import numpy as np
layers = tf.keras.layers

def model_of(*stack):
    model = tf.keras.Sequential(list(stack))
    model.compile("adam", "mse")
    return model

def train(model, shape):
    history = model.fit(np.ones((64,) + shape, "float32"), np.ones((64, 1)), batch_size=16, epochs=2, verbose=0)
    print(len(history.epoch), "epochs")
"""
NUMBERS_AND_IMAGES = """
train(model_of(layers.Dense(16, input_shape=(8,)), layers.Dense(1)), (8,))
convolution = layers.Conv2D(4, 3, input_shape=(12, 12, 1))
normal = layers.BatchNormalization()
train(model_of(convolution, normal, layers.MaxPooling2D(2), layers.Flatten(), layers.Dense(1)), (12, 12, 1))
"""
SERIES = """
recurrent = layers.Bidirectional(layers.{}(8), input_shape=(5, 3))
train(model_of(recurrent, layers.Dense(1)), (5, 3))
"""
MIRRORED = """
strategy = tf.distribute.MirroredStrategy(cross_device_ops={})
print(strategy.num_replicas_in_sync, "replicas")
with strategy.scope():
    model = model_of(layers.Dense(16, input_shape=(8,)), layers.Dense(1))
train(model, (8,))
"""


def needs_kernels(version):
    if not version.launches_kernels:
        pytest.skip(f"{version.name} launches no kernels here")


def test_keras_trains(plain, version):
    needs_kernels(version)
    ran = plain(script(GROWTH, TRAINING, NUMBERS_AND_IMAGES), fresh=True)
    assert ran.stdout == "2 epochs\n2 epochs\n"
    assert list(ran.allocated) == [FIRST]


@pytest.mark.parametrize("layer", ["LSTM", "GRU"])
def test_keras_trains_on_series(plain, version, layer):
    needs_kernels(version)
    ran = plain(script(GROWTH, TRAINING, SERIES.format(layer)))
    assert ran.stdout == "2 epochs\n"
    assert list(ran.allocated) == [FIRST]


def test_a_mirrored_strategy_trains_on_two_gpus(plain, version):
    needs_kernels(version)
    # The NCCL inside a wheel wants a real driver: there, replicas are brought together without it.
    across = "tf.distribute.HierarchicalCopyAllReduce()" if version.brings_nccl else "None"
    ran = plain(script(GROWTH, TRAINING, MIRRORED.format(across)), CUDA_VISIBLE_DEVICES="0,1")
    assert ran.stdout == "2 replicas\n2 epochs\n"
    assert sorted(ran.allocated) == sorted(IN_CUDAS_ORDER[:2])
