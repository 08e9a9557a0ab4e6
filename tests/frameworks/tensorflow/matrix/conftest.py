"""Fixtures for tests that hold for every version of TensorFlow in ``tests/support/versions.py``.

A test that uses the fixture ``version`` or ``with_autogpu`` runs once for each version of TensorFlow. ``make test``
runs the tests with the newest version, and ``make test-matrix`` runs them with the older ones. In each turn, one older
version runs all of its tests, and the other older versions run only the tests that are due.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpusim import Server
from tests.support import environments
from tests.support.forkserver import Forks
from tests.support.tensorflow_runner import Runner
from tests.support.versions import VERSIONS, Version

# The first test of a version installs TensorFlow. So the timeout is long.
MARKS = (pytest.mark.tensorflow, pytest.mark.timeout(900))


def each_version(*, newest_is_whole: bool = True) -> list:
    """Return one pytest parameter for each version of TensorFlow that the tests cover.

    If this machine lacks the Python that an older version needs, pytest skips the tests of that version.

    Args:
        newest_is_whole: True if each turn runs all tests with the newest version; False if those tests take turns.
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


# With the scope "session", pytest runs all tests of one TensorFlow version before those of the next. TensorFlow is then
# already imported, and its files are in memory.
@pytest.fixture(scope="session", params=each_version())
def version(request: pytest.FixtureRequest) -> Version:
    return request.param


@pytest.fixture
def with_autogpu(version: Version, server: Server, tmp_path: Path, forks: Forks) -> Runner:
    python = environments.tensorflow_with_autogpu(version.tensorflow, version.python)
    return Runner(python, server, tmp_path / "project", forks)
