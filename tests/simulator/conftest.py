"""Servers for tests of the simulation, and machines with unmodified frameworks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Iterator, Sequence

import pytest

from tests.gpusim import Gpu, Server
from tests.gpusim.fleets import A100
from tests.support.forkserver import Forks
from tests.support.framework_environments import Release
from tests.support.framework_machines import MIB, Machine


@pytest.fixture
def server_of(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Start servers of these GPUs, each in a folder of its own; what runs there is killed at the end."""
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


def each_release(releases: Sequence[Release]) -> list[Any]:
    """The newest in every run, each older one in one run of four."""
    parameters = []
    for place, release in enumerate(releases):
        name = f"{release.version}-cuda{release.cuda}"
        # One process imports it, for all tests.
        marks = [pytest.mark.xdist_group(name), *([pytest.mark.turns(4, place)] if place else [])]
        parameters.append(pytest.param(release, id=name, marks=marks))
    return parameters


@pytest.fixture(scope="module")
def importers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """A process that has imported the framework of the tests' module."""
    forks = Forks(tmp_path_factory.mktemp("forks"), request.module.FRAMEWORK)
    yield forks
    forks.close()


@pytest.fixture
def gpus() -> Sequence[Gpu]:
    """Small ones: of the memory that an allocator takes, JAX and TensorFlow keep a list that has a thirtieth of it."""
    return [replace(A100, memory="8GiB")] * 4


@pytest.fixture
def machine(python: Path, importers: Forks, gpus: Sequence[Gpu], tmp_path: Path) -> Iterator[Machine]:
    """These GPUs for the Python of the tests' module."""
    with Machine(python, tmp_path / "machine", gpus, importers, TF_CPP_MIN_LOG_LEVEL="3") as made:
        yield made


SAY_AND_LOOK = """
import ctypes, json, os

def say(*values):
    print(json.dumps(values), flush=True)

def used_mib(gpu):
    read = ctypes.CDLL("libcuda.so.1").gpusim_used_bytes
    read.restype = ctypes.c_uint64
    return read(gpu) >> 20
"""


@pytest.fixture
def run(request: pytest.FixtureRequest, machine: Machine) -> Callable[..., list[Any]]:
    """Run a program of the framework, and hear what it says with ``say``."""

    def run_program(program: str, **options: Any) -> list[Any]:
        ran = machine.run(SAY_AND_LOOK + request.module.PRELUDE + program, **options)
        assert ran.exit_status == 0, ran.stderr
        return [json.loads(line) for line in ran.stdout.splitlines()]

    return run_program


def contexts(machine: Machine) -> list[list[int]]:
    """For each process, the GPUs on which it made a context."""
    return sorted(sorted(gpus) for gpus in machine.server.contexts().values())


def arenas(machine: Machine) -> dict[int | None, int]:
    """By GPU, what its allocator took at once; workspaces are smaller."""
    return {c.gpu: c.bytes for c in machine.server.calls(call="allocate") if c.bytes and c.bytes >= 512 * MIB}
