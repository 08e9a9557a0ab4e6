"""Fixtures for tests that hold for every version of TensorFlow in ``tests/support/versions.py``.

A test that uses ``version`` or ``with_autogpu`` runs once for each version. ``make test`` runs the newest version, and
``make test-matrix`` runs the others. In each turn, one of the others runs all of its tests, and the rest run only the
tests that are due.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpusim import Server
from tests.support import environments
from tests.support.forkserver import Forks
from tests.support.tensorflow_runner import Runner
from tests.support.versions import VERSIONS, Version

# The timeout is long because the first run installs the environment.
MARKS = (pytest.mark.tensorflow, pytest.mark.timeout(900))


def each_version(*, newest_is_whole: bool = True) -> list:
    """Return one parameter for each version. A version is skipped if this machine lacks its Python.

    Args:
        newest_is_whole: True if the newest version runs all tests each time, False if its tests take turns.
    """
    *older, newest = VERSIONS
    parameters = []
    for place, version in enumerate(older):
        marks = [*MARKS, pytest.mark.matrix, pytest.mark.turns(len(older), place, whole=True)]
        if environments.interpreter(version.python) is None:
            reason = f"{version.name} is tested on Python {version.python}, which this machine lacks"
            marks.append(pytest.mark.skip(reason=reason))
        parameters.append(pytest.param(version, id=version.name, marks=marks))
    always = [pytest.mark.turns(1, 0, whole=True)] if newest_is_whole else []
    return [*parameters, pytest.param(newest, id=newest.name, marks=[*MARKS, *always])]


# With the scope "session", pytest runs all tests of one version before those of the next. The version is then already
# imported, and its files are in memory.
@pytest.fixture(scope="session", params=each_version())
def version(request: pytest.FixtureRequest) -> Version:
    return request.param


@pytest.fixture
def with_autogpu(version: Version, server: Server, tmp_path: Path, forks: Forks) -> Runner:
    python = environments.tensorflow_with_autogpu(version.tensorflow, version.python)
    return Runner(python, server, tmp_path / "project", forks)
