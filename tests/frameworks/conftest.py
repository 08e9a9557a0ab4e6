"""Machines and environments for tests of PyTorch and JAX."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpusim import Gpu
from tests.support import framework_environments
from tests.support.forkserver import Forks
from tests.support.framework_machines import Installed, Machine


@pytest.fixture(scope="session")
def importers(tmp_path_factory):
    """By framework, processes that have imported it."""
    made = {name: Forks(tmp_path_factory.mktemp("forks"), name) for name in ("torch", "jax", "tensorflow")}
    yield made
    for forks in made.values():
        forks.close()


@pytest.fixture(scope="session")
def newest(importers):
    """By framework, the newest version in an environment where a user has run ``autogpu install``."""
    bases = {name: getattr(framework_environments, name)() for name in ("torch", "jax")}
    return {name: Installed(framework_environments.with_autogpu(bases[name]), importers[name]) for name in bases}


@pytest.fixture(scope="session")
def together(importers):
    """PyTorch, JAX, TensorFlow and Keras in one environment with autogpu, by which of them is imported before."""
    python = framework_environments.keras_with_autogpu()
    return {name: Installed(python, importers[name]) for name in importers}


@pytest.fixture
def machine_of(tmp_path, newest):
    """Make machines, each with GPUs and a lease folder of its own; what runs on them is killed at the end."""
    made = []

    def machine(framework: str | Installed, *gpus: Gpu, **environ: Any) -> Machine:
        python, forks = newest[framework] if isinstance(framework, str) else framework
        made.append(Machine(python, tmp_path / f"machine{len(made)}", gpus, forks, **environ))
        return made[-1]

    yield machine
    for each in made:
        each.__exit__(None, None, None)


# These tests take a quarter of a minute each. In a run of CI each is run with one framework.
@pytest.fixture(
    params=[
        pytest.param(name, marks=[pytest.mark.xdist_group(f"{name}-memory"), pytest.mark.turns(3)])
        for name in ("torch", "jax", "tensorflow")
    ]
)
def framework(request) -> str:
    """The name of a framework."""
    return request.param


@pytest.fixture
def on(framework, machine_of, together):
    """Make a machine for scripts of the framework."""
    return lambda *gpus: machine_of(together["tensorflow"] if framework == "tensorflow" else framework, *gpus)
