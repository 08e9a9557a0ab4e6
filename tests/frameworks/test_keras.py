"""Keras 3 on each backend, with and without a second framework: one claim, and contexts only on the claimed GPU."""

import pytest

from tests.support.framework_jobs import FRAMEWORKS, HOLD, READY, held
from tests.support.framework_machines import FOUR

pytestmark = [pytest.mark.framework, pytest.mark.timeout(1200), pytest.mark.xdist_group("keras")]

FIT = """
import keras, numpy, sys
{before}
model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit({data}, epochs=1, verbose=0)
{after}
print("ready", keras.backend.backend(), flush=True)
sys.stdin.read()
"""

ARRAYS = 'numpy.ones((64, 8), "float32"), numpy.ones((64, 1)), batch_size=16'
DATASET = 'tf.data.Dataset.from_tensor_slices((numpy.ones((64, 8), "float32"), numpy.ones((64, 1)))).batch(16)'

BACKENDS = ("tensorflow", "jax", "torch")
KINDS = {
    "arrays": {"before": "", "data": ARRAYS, "after": ""},
    "tf.data": {"before": "import tensorflow as tf", "data": DATASET, "after": ""},
    "tensorflow-first": {"before": "import tensorflow as tf\ntf.ones(3) + 1", "data": ARRAYS, "after": ""},
    "tensorflow-last": {"before": "", "data": ARRAYS, "after": "import tensorflow as tf\ntf.ones(3) + 1"},
}


def fit(machine, kind, backend, **environ):
    # The import of TensorFlow imports Keras, which then reads KERAS_BACKEND. A fork server has imported TensorFlow
    # before this variable is set for the job.
    is_fresh = backend == "tensorflow"
    environ.update(KERAS_BACKEND=backend, TF_CPP_MIN_LOG_LEVEL="3")
    return machine.start(FIT.format(**KINDS[kind]), fresh=is_fresh, **environ)


@pytest.mark.parametrize(
    ("backend", "kind"),
    [
        pytest.param(backend, kind, id=f"{backend}-{kind}", marks=pytest.mark.turns(3, across + down))
        for down, backend in enumerate(BACKENDS)
        for across, kind in enumerate(KINDS)
    ],
)
def test_keras_fit_uses_only_the_idlest_gpu(together, machine_of, backend, kind):
    machine = machine_of(together[backend], *FOUR)
    job = fit(machine, kind, backend)
    assert job.line() == f"ready {backend}"
    assert (job.contexts, machine.claims()) == ([3], {job.pid: [3]})
    ran = job.end()
    assert (ran.exit_status, len(ran.said)) == (0, 1), ran.stderr
    assert "the idlest of 4" in ran.said[0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_keras_fit_with_count_2_claims_the_two_idlest_gpus(together, machine_of, backend):
    machine = machine_of(together[backend], *FOUR)
    job = fit(machine, "arrays", backend, AUTOGPU_COUNT="2")
    assert job.line() == f"ready {backend}"
    assert set(job.contexts) <= {2, 3}
    assert machine.claims() == {job.pid: [2, 3]}


def test_tensorflow_that_imports_jax_prints_one_line(together, machine_of):
    script = "import sys\nimport tensorflow as tf\ntf.ones(3) + 1\nassert 'jax' in sys.modules, 'nothing was tested'\n"
    ran = machine_of(together["tensorflow"], *FOUR).run(script, TF_CPP_MIN_LOG_LEVEL="3")
    assert (ran.exit_status, ran.contexts, len(ran.said)) == (0, [3], 1), ran.stderr


# A script that hides the GPUs from TensorFlow and only uses ``tf.data`` must not keep another framework from a GPU.
WITHOUT = """
import tensorflow as tf
tf.config.set_visible_devices([], "GPU")
assert len(list(tf.data.Dataset.range(3).as_numpy_iterator())) == 3
"""


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("imported", ["first", "second"])
def test_framework_beside_cpu_only_tensorflow_claims_the_idlest_gpu(together, machine_of, framework, imported):
    before = f"import {framework}\n" if imported == "first" else ""
    machine = machine_of(together[framework], *FOUR)
    job = machine.start(before + WITHOUT + HOLD[framework], TF_CPP_MIN_LOG_LEVEL="3")
    assert job.line() == READY[framework]
    assert job.contexts == [3]
    assert machine.claims() == {job.pid: [3]}
    ran = job.end()
    assert (ran.exit_status, len(ran.said)) == (0, 1), ran.said


def test_cpu_only_tensorflow_prints_no_line_and_makes_no_claim(together, machine_of):
    machine = machine_of(together["tensorflow"], *FOUR)
    job = machine.start(held(WITHOUT, "len(tf.config.list_logical_devices('GPU'))"), TF_CPP_MIN_LOG_LEVEL="3")
    assert job.line() == "ready 0"
    assert machine.claims() == {}
    ran = job.end()
    assert (ran.exit_status, ran.contexts, ran.said) == (0, [], [])
