"""What every test gets: a home of its own, and none of the machine's policy or GPU settings."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest

from tests.support import environments

# pytest finds fixtures and calls hooks here.
from tests.support.acquiring import acquired, no_mutex, other  # noqa: F401
from tests.support.forkserver import Forks
from tests.support.processes import Process
from tests.support.turns import pytest_addoption, pytest_collection_modifyitems, pytest_report_header  # noqa: F401

# A shell tells what it starts in the background to ignore Ctrl-C, and everything that a test starts would do so.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def clean_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Point every directory that autogpu reads at ``tmp_path`` and clear what steers it."""
    # An environment that is active in this shell is none of those in which a test runs `autogpu install`.
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
    """The folder that ``AUTOGPU_LEASE_DIR`` names, for all users to write."""
    made = tmp_path / "leases"
    made.mkdir()
    made.chmod(0o1777)
    return made


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Processes that have imported TensorFlow, for the scripts of all tests."""
    made = Forks(tmp_path_factory.mktemp("forks"))
    yield made
    made.close()


def each_python(*marks: Any) -> list:
    """One parameter for each supported version; those this machine lacks skip and say so.

    The oldest, the newest and the one that runs the tests are in every run; the others take turns.

    Args:
        marks: For all but the one that runs the tests.
    """
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    there = [version for version in environments.SUPPORTED if environments.interpreter(version)]
    others = [version for version in there if version not in (there[0], own, there[-1])]
    parameters = []
    for version in environments.SUPPORTED:
        # Side by side, the tests of one environment stay together: some write into it.
        of_version = [pytest.mark.xdist_group(f"python-{version}"), *(marks if version != own else ())]
        if version not in there:
            of_version.append(pytest.mark.skip(reason=f"no Python {version} on this machine"))
        if version in others:
            of_version.append(pytest.mark.turns(len(others), others.index(version)))
        parameters.append(pytest.param(version, id=version, marks=of_version))
    return parameters


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Start processes whose driver and framework are fakes; each has imported its framework."""
    processes: list[Process] = []

    def started(*devices: Any, **options: Any) -> Process:
        processes.append(Process(tmp_path, *devices, **options).imports())
        return processes[-1]

    yield started
    for process in processes:
        if process.allocation.lease:
            process.allocation.lease.release()
