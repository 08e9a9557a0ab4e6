"""The simulated GPU server under unmodified TensorFlow. Numbers are garbage there: nothing looks at a loss."""

from dataclasses import replace

import pytest

from tests.gpusim import Gpu
from tests.gpusim.fleets import FLEETS
from tests.simulator.conftest import arenas, contexts
from tests.support import environments
from tests.support.framework_machines import GIB

# One process imports it, for all tests.
pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(1200), pytest.mark.xdist_group("plain-tensorflow")]

FRAMEWORK = "tensorflow"

PRELUDE = """
import numpy as np
import tensorflow as tf

def train(*layers):
    import keras
    model = keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    history = model.fit(np.ones((32, 12, 12, 1), "float32"), np.ones((32, 1)), batch_size=16, epochs=2, verbose=0)
    return len(history.epoch)
"""


@pytest.fixture(scope="module")
def python():
    return environments.tensorflow()


@pytest.fixture
def gpus():
    return [Gpu(memory="8GiB", multiprocessors=46), Gpu(memory="48GiB")]


def test_a_fit_runs_to_its_end_and_takes_the_whole_first_gpu(machine, run):
    program = """
from keras import layers
images = [layers.Conv2D(4, 3), layers.BatchNormalization(), layers.MaxPooling2D(2)]
say(train(*images, layers.Reshape((25, 4)), layers.LSTM(8)))
"""
    assert run(program) == [[2]]
    # A context on each visible GPU, the arena on the first of CUDA's order only.
    assert contexts(machine) == [[0, 1]]
    assert list(arenas(machine)) == [1]
    assert arenas(machine)[1] > 0.9 * 48 * GIB
    assert machine.server.used_bytes(1) == 0


def test_its_log_has_no_reading_that_was_refused(python, server_of):
    """TensorFlow 2.21 asks NVML for 18 NVLinks of each GPU, and logs each answer but "not supported" as an error."""
    others = (FLEETS[name].gpus[0] for name in ("dgx-a100", "gb200", "rtx-4090", "h100"))
    gpus = [replace(gpu, uuid="") for gpu in (*FLEETS["rtx-2080-ti"].gpus[:2], *others)]
    server = server_of(*gpus)
    # Not a fork of a process that has imported it: which lines are written is read once.
    done = server.run([str(python), "-c", "import tensorflow as tf; tf.config.list_logical_devices()"], timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Created device /job:localhost") == len(gpus)
    assert [line for line in done.stderr.splitlines() if "nvml" in line.lower()] == []


def test_what_does_not_fit_is_an_error_and_no_crash(machine, run):
    program = """
try:
    tf.zeros((60, 2**28))
except tf.errors.ResourceExhaustedError as error:
    say("exhausted")
"""
    # The driver's own pool: TensorFlow's allocator tries again for ten seconds.
    assert run(program, TF_GPU_ALLOCATOR="cuda_malloc_async") == [["exhausted"]]
    assert machine.server.calls(call="refused") != []


def test_a_mirrored_strategy_trains_on_both_gpus(machine, run):
    program = """
strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    say(strategy.num_replicas_in_sync, train())
"""
    assert run(program) == [[2, 2]]
    assert sorted(arenas(machine)) == [0, 1]
