"""Environments for the tests of real engines, and clusters of Slurm."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Callable, Iterator

import pytest

from tests.engines.slurm import Slurm, device_folder, site, site_of
from tests.engines.slurm_jobs import Cluster
from tests.gpusim import Gpu, Server
from tests.support import environments


@pytest.fixture(scope="session")
def tensorflow_python() -> Path:
    return environments.tensorflow_with_autogpu()


@pytest.fixture(scope="session")
def small_python() -> Path:
    """Return the Python of an environment after ``autogpu install``, for jobs that use ``toyflow``."""
    found = environments.interpreter("3.11")
    assert found, "no Python 3.11 on this machine"
    return environments.environment(found, with_hook=True)


@pytest.fixture(scope="session")
def start_cluster(tmp_path_factory, small_python) -> Callable[..., Cluster]:
    """Return a function that starts Slurm; the cluster stops when ``running`` is closed."""

    def start(running: ExitStack, *nodes, manages_gpus=True, denied="", page=None, **parts) -> Cluster:
        """Start a cluster.

        Args:
            nodes: The GPUs of each node.
            manages_gpus: True if Slurm manages the GPUs.
            denied: How NVML treats GPUs that a cgroup denies to a job: ``refuse`` or ``omit``; ``""`` for no cgroups.
            page: A page of the documentation that prints the site's files.
            parts: The number of ``shards`` or ``mps`` of each node, for jobs that request a part of a GPU.
        """
        folder = tmp_path_factory.mktemp("slurm")
        servers = []
        for position, gpus in enumerate(nodes):
            place = folder / f"server{position}"
            place.mkdir()
            files = {"device_files": str(device_folder(folder)), "denied": denied} if denied else {}
            servers.append(running.enter_context(Server(gpus, folder=place, **files)))
        gpus = len(nodes[0]) if manages_gpus else 0
        files = site_of(page) if page else site(nodes=len(nodes), gpus=gpus, **parts)
        slurm = Slurm(folder, *servers, site=files, cgroup=bool(denied))
        return Cluster(running.enter_context(slurm), small_python)

    return start


@pytest.fixture(scope="session")
def clusters(start_cluster) -> Iterator[Callable[..., Cluster]]:
    """Yield a function that starts a cluster or reuses an equal one; all clusters stop after the last test."""
    made: dict[str, Cluster] = {}
    running = ExitStack()

    def cluster(*nodes, **options) -> Cluster:
        wanted = repr((nodes, options))
        if wanted not in made:
            made[wanted] = start_cluster(running, *nodes, **options)
        return made[wanted]

    with running:
        yield cluster


@pytest.fixture(scope="session")
def batches_end(start_cluster) -> None:
    """Skip the test if Slurm can't run a batch job to its end on this machine."""
    with ExitStack() as running:
        cluster = start_cluster(running, [Gpu()])
        try:
            cluster.slurm.batch("true", timeout=60)
        except RuntimeError as error:
            pytest.skip(f"no batch jobs of Slurm on this machine: {error}")
