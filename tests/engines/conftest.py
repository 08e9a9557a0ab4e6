"""Clusters for the tests of real schedulers."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator

import pytest

from tests.engines.slurm_jobs import Clusters
from tests.support import environments


@pytest.fixture(scope="session")
def tensorflow_python() -> Path:
    """TensorFlow in an environment where a user has run ``autogpu install``."""
    return environments.tensorflow_with_autogpu()


@pytest.fixture
def clusters(tmp_path_factory, tensorflow_python, monkeypatch) -> Iterator[Clusters]:
    """Start clusters of simulated GPU servers; they end with the test."""
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    started = Clusters(tmp_path_factory.mktemp, tensorflow_python)
    yield started
    started.close()
