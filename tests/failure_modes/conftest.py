"""A simulated server, an environment in which a user has run ``autogpu install``, and programs that hold GPUs."""

from __future__ import annotations

import subprocess
import textwrap
import zipfile
from pathlib import Path
from typing import Callable, Iterator, Sequence

import pytest

from tests.failure_modes.holding import AutoGpu
from tests.frameworks.tensorflow import conftest as jobs
from tests.gpusim import Gpu, Server
from tests.support import environments
from tests.support.forkserver import Forks
from tests.support.tensorflow_runner import CONTEXT, Runner

# Jobs of real TensorFlow that live side by side.
host, installed = jobs.host, jobs.installed


@pytest.fixture(scope="session")
def hooked() -> Path:
    """The Python of an environment with pip, the wheel and the hook, and without TensorFlow."""
    found = environments.interpreter("3.11")
    assert found, "no Python 3.11 on this machine"
    return environments.environment(found, ["pip"], with_hook=True)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Start a server of these GPUs."""
    servers: list[Server] = []

    def started(*gpus: Gpu, **faults: object) -> Server:
        folder = tmp_path / f"machine{len(servers)}"
        folder.mkdir()
        servers.append(Server(gpus, folder=folder, context=CONTEXT, **faults).__enter__())
        return servers[-1]

    yield started
    for server in servers:
        server.__exit__(None, None, None)


@pytest.fixture
def commands(hooked: Path, lease_folder: Path) -> Callable[[Server], AutoGpu]:
    """The commands of autogpu on a server."""
    return lambda server: AutoGpu(server, hooked)


@pytest.fixture
def lab(machine: Callable[..., Server], commands: Callable[[Server], AutoGpu]) -> Callable[..., AutoGpu]:
    """The commands of autogpu on a server of these GPUs."""
    return lambda *gpus, **faults: commands(machine(*gpus, **faults))


@pytest.fixture
def train(machine: Callable[..., Server], lease_folder: Path, tmp_path: Path, forks: Forks) -> Callable[..., Runner]:
    """Run scripts of real TensorFlow on a server of these GPUs."""

    def on(*gpus: Gpu, **faults: object) -> Runner:
        server = machine(*gpus, **faults)
        return Runner(environments.tensorflow_with_autogpu(), server, tmp_path / "project", forks)

    return on


class OwnEnvironment:
    """An environment of one test, which may break it: the wheel in a folder, and all else from other environments."""

    def __init__(self, folder: Path, others: Sequence[Path]) -> None:
        base = others[0].resolve()
        subprocess.run([str(base), "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
        self.python = folder / "bin" / "python"
        self.packages = environments.site_packages(self.python)
        with zipfile.ZipFile(environments.wheel()) as wheel:
            wheel.extractall(self.packages)
        lines = [f"{environments.site_packages(other)}\n" for other in others]
        (self.packages / "on_top_of.pth").write_text("".join(lines))

    def run(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        command = [str(self.python), "-B", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=cwd)


@pytest.fixture
def own_environment(tmp_path: Path, requirements: Path) -> Callable[..., OwnEnvironment]:
    """Make an environment on top of the packages of others; the hook is not installed yet."""
    return lambda *others: OwnEnvironment(tmp_path / "environment", [requirements, *others])


@pytest.fixture(scope="session")
def requirements() -> Path:
    """The Python of an environment that has what the wheel requires, and pip."""
    wanted = ("click", "nvidia-ml-py", "pip", "rich")
    found = environments.interpreter("3.11")
    assert found, "no Python 3.11 on this machine"
    return environments.environment(found, wanted, with_autogpu=False, name="requirements")


# A framework that autogpu does not know: it gets its GPU at the import, by the environment.
@pytest.fixture
def stand_in(tmp_path: Path) -> Callable[[str], str]:
    """Write a script beside a ``tensorflow`` of one line; returns the path of the script."""

    def written(script: str) -> str:
        folder = tmp_path / "scripts"
        (folder / "tensorflow").mkdir(parents=True, exist_ok=True)
        (folder / "tensorflow" / "__init__.py").write_text("__version__ = '9.0'\n")
        (folder / "train.py").write_text(textwrap.dedent(script))
        return str(folder / "train.py")

    return written
