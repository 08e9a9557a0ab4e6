"""Fixtures that start simulated servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Iterator

import pytest

from tests.gpusim import Gpu, Server


@pytest.fixture
def server_of(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Return a function that starts a server with the given GPUs. Its programs are killed after the test."""
    servers: list[Server] = []

    def started(*gpus: Gpu, **options: Any) -> Server:
        folder = tmp_path / f"server{len(servers)}"
        folder.mkdir()
        servers.append(Server(gpus, folder=folder, **options).__enter__())
        return servers[-1]

    yield started
    for server in servers:
        server.__exit__(None, None, None)


@pytest.fixture
def pair(server_of: Callable[..., Server]) -> Server:
    return server_of(Gpu(), Gpu(name="NVIDIA A100", memory="40GiB"))
