"""The simulated GPU server under unmodified TensorFlow. Numbers are garbage there: nothing looks at a loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Iterator

import pytest

from tests.gpusim import Gpu, Server
from tests.gpusim.fleets import FLEETS
from tests.support import environments

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(1200)]

MIB, GIB = 2**20, 2**30
CONTEXT = 256 * MIB
ARENA = 512 * MIB  # what only an allocator takes at once; workspaces are smaller

PRELUDE = """
import json
import numpy as np
import tensorflow as tf
import keras
gpus = tf.config.list_physical_devices("GPU")

def small_model():
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model

def train(model, shape=(8,)):
    history = model.fit(np.ones((64, *shape), "float32"), np.ones((64, 1)), batch_size=16, epochs=2, verbose=0)
    return len(history.epoch)
"""


@pytest.fixture(scope="module")
def tensorflow_python() -> Path:
    return environments.tensorflow()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Server]:
    gpus = [
        Gpu(name="NVIDIA GeForce RTX 2080", memory="8GiB", multiprocessors=46),
        Gpu(name="NVIDIA RTX A6000", memory="48GiB", multiprocessors=84, compute_capability="8.6"),
    ]
    with Server(gpus, folder=tmp_path, context=CONTEXT) as server:
        yield server


@pytest.fixture
def run(tensorflow_python, pair, tmp_path, forks):
    def run_program(program: str, **environ: str) -> list:
        file = tmp_path / "program.py"
        file.write_text(PRELUDE + program)
        everything = pair.environ_of_child(environ)
        done = forks.run(tensorflow_python, file, environ=everything, folder=tmp_path, timeout_s=300)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run_program


def test_the_gpus_are_listed_in_cudas_order_and_nothing_is_taken(pair, run):
    names = run("print(json.dumps([tf.config.experimental.get_device_details(g)['device_name'] for g in gpus]))")
    assert names == [["NVIDIA RTX A6000", "NVIDIA GeForce RTX 2080"]]
    assert pair.contexts() == {}
    assert len(pair.calls(call="cuInit")) == 1


def test_only_visible_gpus_are_listed(pair, run):
    environ = {"CUDA_VISIBLE_DEVICES": pair.gpus[0].uuid[:12]}
    names = run(
        "print(json.dumps([tf.config.experimental.get_device_details(g)['device_name'] for g in gpus]))", **environ
    )
    assert names == [["NVIDIA GeForce RTX 2080"]]


def test_a_keras_fit_runs_to_its_end_and_takes_the_whole_first_gpu(pair, run):
    assert run("print(train(small_model()))") == [2]
    (pid,) = pair.contexts()
    # A context on each visible GPU, the arena on the first of CUDA's order only.
    assert sorted(pair.contexts()[pid]) == [0, 1]
    arenas = [call for call in pair.calls(call="allocate") if call.bytes >= ARENA]
    assert [call.gpu for call in arenas] == [1]
    assert arenas[0].bytes > 0.9 * 48 * GIB
    assert pair.used_bytes(1) == 0


def test_a_convolution_is_trained_too(run):
    program = """
model = keras.Sequential([keras.layers.Input((12, 12, 1)), keras.layers.Conv2D(4, 3), keras.layers.Flatten(),
                          keras.layers.Dense(1)])
model.compile("adam", "mse")
print(train(model, (12, 12, 1)))
"""
    assert run(program) == [2]


def test_memory_growth_takes_little_by_little(pair, run):
    program = """
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
print(train(small_model()))
"""
    assert run(program) == [2]
    assert [call for call in pair.calls(call="allocate") if call.bytes >= ARENA] == []


def test_a_memory_limit_holds_for_the_arena(pair, run):
    program = """
tf.config.set_logical_device_configuration(gpus[0], [tf.config.LogicalDeviceConfiguration(memory_limit=1024)])
print(train(small_model()))
"""
    assert run(program) == [2]
    arenas = [call.bytes for call in pair.calls(call="allocate") if call.bytes >= ARENA]
    assert arenas == [GIB]


def test_what_does_not_fit_is_an_error_and_no_crash(run):
    program = """
tf.config.experimental.set_memory_growth(gpus[0], True)
tf.config.set_visible_devices(gpus[0], "GPU")
try:
    tf.zeros((60, 2**28))
except tf.errors.ResourceExhaustedError as error:
    print('"exhausted"')
"""
    assert run(program) == ["exhausted"]


def test_a_mirrored_strategy_trains_on_both_gpus(pair, run):
    program = """
strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = small_model()
print(json.dumps([strategy.num_replicas_in_sync, train(model)]))
"""
    assert run(program) == [[2, 2]]
    arenas = {call.gpu for call in pair.calls(call="allocate") if call.bytes >= ARENA}
    assert arenas == {0, 1}


def test_on_a_mig_instance_tensorflow_has_its_memory_and_no_more(tensorflow_python, tmp_path, forks):
    program = tmp_path / "program.py"
    program.write_text(
        PRELUDE + "print(json.dumps([tf.config.experimental.get_device_details(g)['device_name'] for g in gpus]))\n"
        "print(train(small_model()))\n"
    )
    cut = FLEETS["a100-mig"]
    with Server(cut.gpus, folder=tmp_path, context=CONTEXT) as server:
        one = next(each for each in server.instances if each.name.endswith("2g.10gb"))
        environ = server.environ_of_child({"CUDA_VISIBLE_DEVICES": one.uuid})
        done = forks.run(tensorflow_python, program, environ=environ, folder=tmp_path, timeout_s=300)
        assert done.stdout.splitlines() == ['["NVIDIA A100-SXM4-40GB MIG 2g.10gb"]', "2"], done.stderr
        used = {(call.gpu, call.instance) for kind in ("context", "allocate") for call in server.calls(call=kind)}
        arenas = [call.bytes for call in server.calls(call="allocate") if call.bytes >= ARENA]
    assert used == {(4, 1)}
    # All that is left of the instance beside what TensorFlow keeps free.
    assert [round(size / GIB) for size in arenas] == [8]
