"""Unmodified TensorFlow on the simulated GPU server, without autogpu. Numbers are garbage there: nothing looks at a
loss.
"""

from __future__ import annotations

import subprocess

import pytest

from tests.support import environments
from tests.support.tensorflow_runner import (
    CONTEXT,
    GIB,
    GROWTH,
    IN_CUDAS_ORDER,
    LIMIT_OF_1_GIB,
    MIB,
    operation,
    script,
    session,
)
from tests.support.versions import VERSIONS

FIRST = IN_CUDAS_ORDER[0]
LARGEST = 24 * GIB - CONTEXT

SECOND_ONLY = """
gpus = tf.config.experimental.list_physical_devices("GPU")
tf.config.experimental.set_visible_devices(gpus[1], "GPU")
"""
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
# Takes its first memory, says so, and keeps it until its input ends.
HOLD = "print('holding', flush=True)\nimport sys\nsys.stdin.read()\n"


def needs_kernels(version):
    if not version.launches_kernels:
        pytest.skip(f"{version.name} launches no kernels here")


def test_the_gpus_are_listed_and_nothing_is_taken(plain):
    ran = plain(script("print(len(tf.config.experimental.list_physical_devices('GPU')))"), fresh=True)
    assert ran.stdout == "4\n"
    assert [call.call for call in ran.calls if call.call != "nvmlInit"] == ["cuInit"]


@pytest.mark.parametrize(
    ("setting", "least", "most"),
    [
        pytest.param("", 0.9 * LARGEST, LARGEST, id="default"),
        pytest.param(GROWTH, 1, 64 * MIB, id="growth"),
        pytest.param(LIMIT_OF_1_GIB, GIB, GIB, id="limit"),
    ],
)
def test_a_first_operation_is_granted_the_memory_that_was_set(plain, server, version, setting, least, most):
    ran = plain(script(setting, operation(version)))
    assert ran.contexts == [0, 1, 2, 3], "one on each visible GPU"
    assert list(ran.allocated) == [FIRST]
    assert least <= ran.allocated[FIRST] <= most
    assert server.used_bytes(FIRST) == 0, "nothing is left when it ends"


def test_a_session_is_granted_the_fraction_in_its_configuration(plain, version):
    options = "tf.compat.v1.GPUOptions(per_process_gpu_memory_fraction=0.25)"
    ran = plain(script(session(version, f"config=tf.compat.v1.ConfigProto(gpu_options={options})")))
    assert ran.allocated == {FIRST: 6 * GIB}


def test_only_visible_gpus_are_used_and_the_first_named_is_the_first(plain, server, version):
    listed = f"{server.gpus[2].uuid},{server.gpus[0].uuid}"
    ran = plain(script(GROWTH, operation(version)), CUDA_VISIBLE_DEVICES=listed)
    assert (ran.contexts, list(ran.allocated)) == ([0, 2], [2])


def test_a_script_that_hides_all_gpus_but_one_touches_no_other(plain, version):
    ran = plain(script(SECOND_ONLY, operation(version)))
    assert ran.contexts == list(ran.allocated) == [IN_CUDAS_ORDER[1]]


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


@pytest.mark.matrix
@pytest.mark.tensorflow
@pytest.mark.timeout(900)
def test_all_versions_share_one_server(server, tmp_path):
    versions = [version for version in VERSIONS if environments.interpreter(version.python)]
    jobs = []
    for version in versions:
        file = tmp_path / f"{version.name}.py"
        file.write_text(script(GROWTH, operation(version), HOLD))
        python = environments.tensorflow(version.tensorflow, version.python)
        command = [str(python), str(file)]
        environ = {"CUDA_VISIBLE_DEVICES": "0"}
        jobs.append(server.popen(command, environ=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    assert [job.stdout.readline() for job in jobs] == ["holding\n"] * len(versions)
    allocated, freed = server.calls(call="allocate"), server.calls(call="free")
    assert {call.pid for call in allocated} == {job.pid for job in jobs}
    kept = sum(call.bytes for call in allocated) - sum(call.bytes for call in freed)
    assert server.used_bytes(FIRST) == kept + len(jobs) * CONTEXT
    for job in jobs:
        job.stdin.close()
        assert job.wait(timeout=60) == 0
    assert server.used_bytes(FIRST) == 0
