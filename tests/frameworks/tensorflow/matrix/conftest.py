"""Fixtures for tests that hold for every version of TensorFlow in ``tests/support/versions.py``.

A test that takes ``version`` or ``with_autogpu`` runs once for each version: the newest in ``make test``,
the others in ``make test-matrix``, where one of them has its turn to run whole.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpusim import Server
from tests.support import environments
from tests.support.forkserver import Forks
from tests.support.tensorflow_runner import Runner
from tests.support.versions import VERSIONS, Version

# A first run installs the environment.
MARKS = (pytest.mark.tensorflow, pytest.mark.timeout(900))


def each_version(*, newest_is_whole: bool = True) -> list:
    """One parameter for each version; those whose Python this machine lacks skip and name it.

    Args:
        newest_is_whole: Whether of the newest nothing takes turns.
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


# Of the session, so that pytest runs all tests of a version before the next one: it is imported, and its files are in
# memory then.
@pytest.fixture(scope="session", params=each_version())
def version(request: pytest.FixtureRequest) -> Version:
    """One TensorFlow after the other."""
    return request.param


@pytest.fixture
def with_autogpu(version: Version, server: Server, tmp_path: Path, forks: Forks) -> Runner:
    """Runs a script where ``autogpu install`` has been run."""
    python = environments.tensorflow_with_autogpu(version.tensorflow, version.python)
    return Runner(python, server, tmp_path / "project", forks)
