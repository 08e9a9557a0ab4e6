"""Fixtures that make environments and machines for the tests of PyTorch, JAX and TensorFlow."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpusim import Gpu
from tests.support import framework_environments
from tests.support.forkserver import Forks
from tests.support.framework_machines import Installed, Machine


@pytest.fixture(scope="session")
def importers(tmp_path_factory):
    """Yield fork servers that have imported a framework, keyed by the framework's name."""
    made = {name: Forks(tmp_path_factory.mktemp("forks"), name) for name in ("torch", "jax", "tensorflow")}
    yield made
    for forks in made.values():
        forks.close()


@pytest.fixture(scope="session")
def newest(importers):
    """Return the newest release of PyTorch and JAX, each in an environment after ``autogpu install``."""
    bases = {name: getattr(framework_environments, name)() for name in ("torch", "jax")}
    return {name: Installed(framework_environments.with_autogpu(bases[name]), importers[name]) for name in bases}


@pytest.fixture(scope="session")
def together(importers):
    """Return the environment with all frameworks, Keras and autogpu once for each framework, keyed by framework.

    The fork server of an entry has imported the framework of its key.
    """
    python = framework_environments.keras_with_autogpu()
    return {name: Installed(python, importers[name]) for name in importers}


@pytest.fixture
def machine_of(tmp_path, newest):
    """Yield a function that makes machines, each with its own GPUs and lease folder; kill their jobs at the end."""
    made = []

    def machine(framework: str | Installed, *gpus: Gpu, **environ: Any) -> Machine:
        python, forks = newest[framework] if isinstance(framework, str) else framework
        made.append(Machine(python, tmp_path / f"machine{len(made)}", gpus, forks, **environ))
        return made[-1]

    yield machine
    for each in made:
        each.__exit__(None, None, None)


# Each test takes about 15 s per framework, so a CI run uses only one framework for each test.
@pytest.fixture(
    params=[
        pytest.param(name, marks=[pytest.mark.xdist_group(f"{name}-memory"), pytest.mark.turns(3)])
        for name in ("torch", "jax", "tensorflow")
    ]
)
def framework(request) -> str:
    return request.param


@pytest.fixture
def on(framework, machine_of, together):
    return lambda *gpus: machine_of(together["tensorflow"] if framework == "tensorflow" else framework, *gpus)
