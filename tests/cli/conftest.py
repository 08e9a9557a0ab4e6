"""A server for the commands of autogpu, and the folder of its leases."""

import pytest

from tests.cli.lab import LAB
from tests.gpusim import Server


@pytest.fixture
def server(request, tmp_path, lease_folder):
    """One with the ``GPUS`` of the test's module, or with those of the lab."""
    (tmp_path / "server").mkdir()
    with Server(getattr(request.module, "GPUS", LAB), folder=tmp_path / "server") as running:
        yield running


@pytest.fixture
def environ(lease_folder):
    return {"AUTOGPU_LEASE_DIR": str(lease_folder)}
