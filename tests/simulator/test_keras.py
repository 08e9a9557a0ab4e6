"""The simulated GPU server under Keras 3, with each of its frameworks. Numbers are garbage: nothing looks at a loss."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator

import pytest

from tests.gpusim import Gpu, Server
from tests.support import framework_environments

pytestmark = [pytest.mark.framework, pytest.mark.timeout(1200)]

FIT = """
import keras, numpy
model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(1)])
model.compile("adam", "mse")
history = model.fit(numpy.ones((64, 8), "float32"), numpy.ones((64, 1)), batch_size=16, epochs=2, verbose=0)
print(keras.backend.backend(), len(history.epoch))
"""


@pytest.fixture(scope="module")
def keras_python() -> Path:
    return framework_environments.keras()


@pytest.fixture
def pair(keras_python: Path, tmp_path: Path) -> Iterator[Server]:
    gpus = [Gpu(name="NVIDIA A100", memory="40GiB", compute_capability="8.0", multiprocessors=108)] * 2
    with Server(gpus, folder=tmp_path, device_nodes=True) as server:
        yield server


@pytest.mark.parametrize(("backend", "gpus"), [("tensorflow", [0, 1]), ("jax", [0, 1]), ("torch", [0])])
def test_a_fit_has_the_gpus_of_its_framework(keras_python, pair, backend, gpus):
    done = pair.run([str(keras_python), "-c", FIT], environ={"KERAS_BACKEND": backend}, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"{backend} 2"
    assert [sorted(made) for made in pair.contexts().values()] == [gpus]
    assert {call.gpu for call in pair.calls(call="allocate")} == {0}
