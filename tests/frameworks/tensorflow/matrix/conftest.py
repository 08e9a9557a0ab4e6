"""Fixtures for tests that hold for every version of TensorFlow in ``tests/support/versions.py``.

A test that takes ``version``, ``plain`` or ``with_autogpu`` runs once for each version, in ``make test-matrix`` only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Iterator

import pytest

from tests.gpusim import Server
from tests.support import environments
from tests.support.forkserver import Forks
from tests.support.tensorflow_runner import CONTEXT, LAB, Runner
from tests.support.versions import VERSIONS, Version

# A first run installs the environment.
MARKS = (pytest.mark.matrix, pytest.mark.tensorflow, pytest.mark.timeout(900))


def each_version() -> list:
    """One parameter for each version; those whose Python this machine lacks skip and name it."""
    parameters = []
    for version in VERSIONS:
        missing = environments.interpreter(version.python) is None
        reason = f"{version.name} is tested on Python {version.python}, which this machine lacks"
        skip = [pytest.mark.skip(reason=reason)] if missing else []
        # Side by side, one process does what there is for a version: it imports that once.
        group = pytest.mark.xdist_group(version.name)
        parameters.append(pytest.param(version, id=version.name, marks=[*MARKS, group, *skip]))
    return parameters


# Of the session, so that pytest runs all tests of a version before the next one: its files are in memory then.
@pytest.fixture(scope="session", params=each_version())
def version(request: pytest.FixtureRequest) -> Version:
    """One TensorFlow after the other."""
    return request.param


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Four GPUs, of which 1 and 3 are idle."""
    (tmp_path / "server").mkdir()
    with Server(LAB, folder=tmp_path / "server", context=CONTEXT) as running:
        yield running


@pytest.fixture
def plain(version: Version, server: Server, tmp_path: Path, forks: Forks) -> Runner:
    """Runs a script where nothing of ours is installed."""
    python = environments.tensorflow(version.tensorflow, version.python)
    return Runner(python, server, tmp_path / "project", forks)


@pytest.fixture
def with_autogpu(version: Version, server: Server, tmp_path: Path, forks: Forks) -> Runner:
    """Runs a script where ``autogpu install`` has been run."""
    python = environments.tensorflow_with_autogpu(version.tensorflow, version.python)
    return Runner(python, server, tmp_path / "project", forks)
