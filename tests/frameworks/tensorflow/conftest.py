"""A host with a lease folder, on which jobs of real TensorFlow meet."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpusim import Server
from tests.support import environments
from tests.support.live_jobs import HOLD, Job


@pytest.fixture(scope="module")
def python() -> Path:
    base = environments.tensorflow()
    return environments.environment(base.resolve(), ["joblib"], on_top_of=base, with_hook=True)


@pytest.fixture
def host(tmp_path, python, lease_folder):
    """Start jobs on a server of ``gpus``; each is killed at the end."""
    servers = []

    def running(*gpus, script=HOLD, **faults):
        place = tmp_path / f"server{len(servers)}"
        place.mkdir()
        server = Server(gpus, folder=place, **faults)
        server.__enter__()
        servers.append(server)
        file = place / "train.py"
        file.write_text(script)

        def start(*arguments, **environ):
            return Job(
                server,
                python,
                file,
                *arguments,
                AUTOGPU_LEASE_DIR=str(lease_folder),
                TF_CPP_MIN_LOG_LEVEL="3",
                **environ,
            )

        start.server = server
        return start

    yield running
    for server in servers:
        server.__exit__(None, None, None)
