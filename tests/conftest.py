"""Fixtures for all tests. Each test has its own home and none of this machine's policy or GPU settings."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest

from tests.support import environments

# pytest finds fixtures and calls hooks here.
from tests.support.acquiring import acquired, no_mutex, other  # noqa: F401
from tests.support.forkserver import Forks
from tests.support.processes import Process
from tests.support.turns import pytest_addoption, pytest_collection_modifyitems, pytest_report_header  # noqa: F401

# A shell makes its background processes ignore SIGINT, and every process that a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def clean_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Point every directory that autogpu reads at ``tmp_path``, and unset variables of autogpu, CUDA and frameworks."""
    # Tests run `autogpu install` in environments of their own, not in the one that is active in this shell.
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    for name in list(os.environ):
        if name.startswith(("AUTOGPU", "CUDA_", "GPUSIM", "TF_", "JAX_", "XLA_", "PYTORCH_", "SLURM_", "PYTHON")):
            monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / ".cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / ".local" / "state"))
    monkeypatch.setenv("AUTOGPU_LEASE_DIR", str(tmp_path / "leases"))


@pytest.fixture
def lease_folder(tmp_path: Path) -> Path:
    """Create the folder of ``AUTOGPU_LEASE_DIR``, writable by all users."""
    made = tmp_path / "leases"
    made.mkdir()
    made.chmod(0o1777)
    return made


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Provide processes that have imported TensorFlow; all tests of the session share them."""
    made = Forks(tmp_path_factory.mktemp("forks"))
    yield made
    made.close()


def each_python(*marks: Any) -> list:
    """Return one parameter for each supported Python. Versions that this machine lacks are skipped with a reason.

    The oldest version, the newest one and the one that runs the tests are in every run. The others take turns.

    Args:
        marks: Marks for all versions except the one that runs the tests.
    """
    own = environments.OWN_VERSION
    there = [version for version in environments.SUPPORTED if environments.interpreter(version)]
    others = [version for version in there if version not in (there[0], own, there[-1])]
    parameters = []
    for version in environments.SUPPORTED:
        # With xdist, one worker runs all tests of an environment, because some of them write into it.
        of_version = [pytest.mark.xdist_group(f"python-{version}"), *(marks if version != own else ())]
        if version not in there:
            of_version.append(pytest.mark.skip(reason=f"no Python {version} on this machine"))
        if version in others:
            of_version.append(pytest.mark.turns(len(others), others.index(version)))
        parameters.append(pytest.param(version, id=version, marks=of_version))
    return parameters


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Return a function that starts a process with a fake driver and imports a fake framework in it."""
    processes: list[Process] = []

    def started(*devices: Any, **options: Any) -> Process:
        processes.append(Process(tmp_path, *devices, **options).imports())
        return processes[-1]

    yield started
    for process in processes:
        if process.allocation.lease:
            process.allocation.lease.release()
