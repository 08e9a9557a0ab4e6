"""Keras 3 on each of its backends, also where it loads a second framework: one claim, and contexts on its GPU alone."""

from __future__ import annotations

import pytest

from tests.gpusim import Gpu
from tests.support import framework_environments
from tests.support.framework_machines import BUSY

FOUR = (BUSY, Gpu(), Gpu(), Gpu())

pytestmark = [pytest.mark.framework, pytest.mark.timeout(1200), pytest.mark.xdist_group("keras")]

FIT = """
import keras, numpy
{before}
model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit({data}, epochs=1, verbose=0)
{after}
print("ready", keras.backend.backend(), flush=True)
input()
"""

ARRAYS = 'numpy.ones((64, 8), "float32"), numpy.ones((64, 1)), batch_size=16'
DATASET = 'tf.data.Dataset.from_tensor_slices((numpy.ones((64, 8), "float32"), numpy.ones((64, 1)))).batch(16)'

KINDS = {
    "arrays": {"before": "", "data": ARRAYS, "after": ""},
    "tf.data": {"before": "import tensorflow as tf", "data": DATASET, "after": ""},
    "tensorflow-first": {"before": "import tensorflow as tf\ntf.ones(3) + 1", "data": ARRAYS, "after": ""},
    "tensorflow-last": {"before": "", "data": ARRAYS, "after": "import tensorflow as tf\ntf.ones(3) + 1"},
}


@pytest.fixture(scope="module")
def keras_python():
    return framework_environments.keras_with_autogpu()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_a_fit_is_on_the_idlest_gpu_alone(keras_python, machine_of, backend, kind):
    machine = machine_of(keras_python, *FOUR)
    job = machine.start(FIT.format(**KINDS[kind]), KERAS_BACKEND=backend, TF_CPP_MIN_LOG_LEVEL="3")
    assert job.line() == f"ready {backend}"
    assert (job.contexts, machine.claims()) == ([3], {job.pid: [3]})
    job.go_on()
    ran = job.end()
    assert (ran.exit_status, len(ran.said)) == (0, 1), ran.stderr
    assert "the idlest of 4" in ran.said[0]


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_two_gpus_are_claimed_and_used_where_they_are_asked_for(keras_python, machine_of, backend):
    machine = machine_of(keras_python, *FOUR)
    job = machine.start(
        FIT.format(**KINDS["arrays"]), KERAS_BACKEND=backend, TF_CPP_MIN_LOG_LEVEL="3", AUTOGPU_COUNT="2"
    )
    assert job.line() == f"ready {backend}"
    assert set(job.contexts) <= {2, 3}
    assert machine.claims() == {job.pid: [2, 3]}


def test_tensorflow_beside_a_jax_that_it_imports_says_one_line(keras_python, machine_of):
    script = "import sys\nimport tensorflow as tf\ntf.ones(3) + 1\nassert 'jax' in sys.modules, 'nothing was tested'\n"
    ran = machine_of(keras_python, *FOUR).run(script, TF_CPP_MIN_LOG_LEVEL="3")
    assert (ran.exit_status, ran.contexts, len(ran.said)) == (0, [3], 1), ran.stderr
