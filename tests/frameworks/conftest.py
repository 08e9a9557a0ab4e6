"""Machines and environments for tests of PyTorch and JAX."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpusim import Gpu
from tests.support import environments, framework_environments
from tests.support.framework_machines import Machine


@pytest.fixture(scope="session")
def framework_pythons() -> dict[str, Path]:
    """By framework, the newest version in an environment where a user has run ``autogpu install``."""
    made = {name: getattr(framework_environments, name)() for name in ("torch", "jax")}
    return {name: framework_environments.with_autogpu(base) for name, base in made.items()}


@pytest.fixture(scope="session")
def both_python() -> Path:
    """PyTorch and JAX in one environment, with autogpu."""
    bases = [framework_environments.torch(), framework_environments.jax()]
    return environments.environment(bases[0].resolve(), on_top_of=bases, with_hook=True)


@pytest.fixture
def machine_of(tmp_path):
    """Make machines, each with GPUs and a lease folder of its own; what runs on them is killed at the end."""
    made = []

    def machine(python: Path, *gpus: Gpu, **environ: str) -> Machine:
        made.append(Machine(python, tmp_path / f"machine{len(made)}", gpus, **environ))
        return made[-1]

    yield machine
    for each in made:
        each.__exit__(None, None, None)
