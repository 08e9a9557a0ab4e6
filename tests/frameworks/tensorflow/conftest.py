"""Fixtures for jobs of real TensorFlow on simulated GPUs, with a lease folder."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Iterator

import pytest

from tests.gpusim import Server
from tests.support import environments
from tests.support.live_jobs import HOLD, Job
from tests.support.tensorflow_runner import CONTEXT, LAB, Runner


@pytest.fixture(scope="session")
def installed() -> Path:
    """The Python of an environment with the newest TensorFlow, in which ``autogpu install`` was run."""
    return environments.tensorflow_with_autogpu()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server with four GPUs; GPU 1 and GPU 3 are idle."""
    (tmp_path / "server").mkdir()
    with Server(LAB, folder=tmp_path / "server", context=CONTEXT) as running:
        yield running


@pytest.fixture
def run(installed, server, tmp_path, forks) -> Runner:
    return Runner(installed, server, tmp_path / "project", forks)


@pytest.fixture
def host(tmp_path, installed, lease_folder, forks):
    """Yield a function that makes a server with the given GPUs, and returns a function that starts jobs on it.

    The servers stop at the end of the test.
    """
    servers = []

    def running(*gpus, script=HOLD, python=installed, **faults):
        place = tmp_path / f"server{len(servers)}"
        place.mkdir()
        server = Server(gpus, folder=place, **faults)
        server.__enter__()
        servers.append(server)
        file = place / "train.py"
        file.write_text(script)

        environ = {"AUTOGPU_LEASE_DIR": str(lease_folder), "TF_CPP_MIN_LOG_LEVEL": "3"}
        start: Any = functools.partial(Job, server, python, file, forks=forks, **environ)
        start.server = server
        return start

    yield running
    for server in servers:
        server.__exit__(None, None, None)
