"""Ranks that Open MPI and MPICH start on one simulated server, judged by what the driver granted to each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass

import pytest

from tests.engines.engine_jobs import TIMEOUT_S, end_all, gib_of, gpus_of, lines_of_autogpu
from tests.gpusim import Gpu, Server
from tests.support import environments

pytestmark = [pytest.mark.engine, pytest.mark.tensorflow, pytest.mark.timeout(900)]

CONTEXT_GIB = 0.25


@dataclass(frozen=True)
class Launcher:
    """How to start ranks, which variable counts them on a host, and how to set a variable for all of them."""

    command: tuple[str, ...]
    rank: str
    set_for_all: tuple[str, ...]


LAUNCHERS = {
    "open-mpi": Launcher(
        ("mpirun.openmpi", "--oversubscribe"), "OMPI_COMM_WORLD_LOCAL_RANK", ("-x", "CUDA_VISIBLE_DEVICES=0")
    ),
    "mpich": Launcher(("mpirun.mpich",), "MPI_LOCALRANKID", ("-genv", "CUDA_VISIBLE_DEVICES", "0")),
}

# An allocator that grows asks the driver for powers of two, cut off at its limit: a tensor shows the limit where the
# next power of two is above it. No rank ends before all have their tensors, as with ranks that train together.
RANK = """
import json, os, sys, time
rank, ranks, gib = (int(each) for each in sys.argv[1:])
# Each its own, so that what it says is not mixed with what others say.
os.dup2(os.open(f"stderr.{rank}", os.O_WRONLY | os.O_CREAT), 2)
import tensorflow as tf
try:
    on = tf.raw_ops.Empty(shape=(gib, 1 << 14, 1 << 14), dtype=tf.float32).device[-5:]
except tf.errors.ResourceExhaustedError:
    on = "refused"
with open(f"new.{rank}", "w") as file:
    json.dump([os.getpid(), on], file)
os.rename(f"new.{rank}", f"rank.{rank}")
deadline = time.monotonic() + 200
while not all(os.path.exists(f"rank.{each}") for each in range(ranks)):
    if time.monotonic() > deadline:
        sys.exit(f"rank {rank} waits for the others")
    time.sleep(0.05)
"""


@dataclass(frozen=True)
class Rank:
    """What became of a rank.

    Attributes:
        on: The device of its tensor; ``refused`` if it did not fit.
        gpus: Where it made a context.
        gib: What the driver granted to it.
        said: What autogpu printed in it.
    """

    on: str
    gpus: list[int]
    gib: float
    said: list[str]


@pytest.fixture(scope="module")
def python():
    return environments.tensorflow_with_autogpu()


@pytest.fixture
def run(tmp_path, lease_folder, python, monkeypatch):
    """Run ranks that each make a tensor, on a server of ``gpus``; in their order."""
    for name in [name for name in os.environ if name.startswith(("OMPI_", "PMI_", "MPI_"))]:
        monkeypatch.delenv(name)

    def run(launcher, gpus, ranks, gib, *options, wrapper="", **environ):
        if shutil.which(launcher.command[0]) is None:
            pytest.skip(f"{launcher.command[0]} is not installed (Debian: openmpi-bin, mpich)")
        (tmp_path / "rank.py").write_text(RANK)
        start = tmp_path / "start.sh"
        command = f'"{python}" rank.py "${launcher.rank}" {ranks} {gib}'
        start.write_text(wrapper.format(rank=f"${launcher.rank}", command=command) or f"exec {command}\n")
        everything = {
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            **environ,
        }
        with Server(gpus, folder=tmp_path) as server:
            try:
                done = server.run(
                    [*launcher.command, "-n", str(ranks), *options, "sh", str(start)],
                    environ=everything,
                    cwd=str(tmp_path),
                    stdin=subprocess.DEVNULL,
                    timeout=TIMEOUT_S,
                )
            finally:
                left = end_all(server, timeout_s=10)
            assert (done.returncode, left) == (0, []), done.stderr
            return [_read(server, tmp_path, rank) for rank in range(ranks)]

    return run


def _read(server, folder, rank):
    pid, on = json.loads((folder / f"rank.{rank}").read_text())
    said = lines_of_autogpu((folder / f"stderr.{rank}").read_text(errors="replace"))
    return Rank(on, gpus_of(server, pid), gib_of(server, pid), said)


def only_rank_0_speaks(ranks):
    return [bool(rank.said) for rank in ranks] == [True] + [False] * (len(ranks) - 1)


@pytest.fixture(params=LAUNCHERS)
def launcher(request):
    return LAUNCHERS[request.param]


BUSY = Gpu(processes={5004242: "1GiB"}, utilization=90)


def test_each_of_four_ranks_has_one_of_four_gpus(run, launcher):
    ranks = run(launcher, [Gpu()] * 4, 4, 20)
    assert [(rank.on, rank.gpus) for rank in ranks] == [("GPU:0", [gpu]) for gpu in range(4)]
    assert only_rank_0_speaks(ranks), [rank.said for rank in ranks]


def test_fewer_ranks_than_gpus_are_on_the_idlest_together(run, launcher):
    ranks = run(launcher, [BUSY, Gpu(), Gpu(), Gpu()], 2, 20)
    assert [(rank.on, rank.gpus) for rank in ranks] == [("GPU:0", [2]), ("GPU:0", [3])]


def test_a_rank_beside_the_job_of_somebody_else_is_capped(run, launcher):
    four = run(launcher, [BUSY, Gpu(), Gpu(), Gpu()], 4, 9)
    assert [(rank.on, rank.gpus) for rank in four] == [("GPU:0", [gpu]) for gpu in range(4)]
    # Half of the 23 GiB that are free.
    assert 11 <= four[0].gib <= 11.5
    assert "capped at half of what is free" in four[0].said[0], four[0].said


def test_each_of_eight_ranks_has_half_of_one_of_four_gpus(run, launcher):
    ranks = run(launcher, [Gpu()] * 4, 8, 9)
    assert [(rank.on, rank.gpus) for rank in ranks] == [("GPU:0", [gpu]) for gpu in (0, 0, 1, 1, 2, 2, 3, 3)]
    assert [11 <= rank.gib <= 12 - CONTEXT_GIB for rank in ranks] == [True] * 8, [rank.gib for rank in ranks]
    assert only_rank_0_speaks(ranks), [rank.said for rank in ranks]


WRAPPERS = {
    "exec": "export CUDA_VISIBLE_DEVICES={rank}\nexec {command}\n",
    "child": "export CUDA_VISIBLE_DEVICES={rank}\n{command}\nexit $?\n",
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_rank_that_a_wrapper_gave_a_gpu_may_fill_it(run, launcher, wrapper):
    ranks = run(launcher, [Gpu()] * 4, 4, 22, wrapper=WRAPPERS[wrapper])
    assert [(rank.on, rank.gpus) for rank in ranks] == [("GPU:0", [gpu]) for gpu in range(4)], ranks
    assert [rank.gib >= 22 for rank in ranks] == [True] * 4, [rank.gib for rank in ranks]
    assert only_rank_0_speaks(ranks), [rank.said for rank in ranks]


@pytest.mark.parametrize("set_by", ["the-shell", "the-launcher"])
def test_ranks_that_were_all_given_one_gpu_share_it(run, launcher, set_by):
    options = launcher.set_for_all if set_by == "the-launcher" else ()
    environ = {"CUDA_VISIBLE_DEVICES": "0"} if set_by == "the-shell" else {}
    ranks = run(launcher, [Gpu()] * 4, 4, 5, *options, **environ)
    assert [(rank.on, rank.gpus) for rank in ranks] == [("GPU:0", [0])] * 4
    assert [5.25 <= rank.gib <= 6 - CONTEXT_GIB for rank in ranks] == [True] * 4, [rank.gib for rank in ranks]
    assert only_rank_0_speaks(ranks), [rank.said for rank in ranks]


def test_only_rank_0_speaks_of_a_mistake_in_the_policy(run, launcher):
    ranks = run(launcher, [Gpu(), Gpu()], 2, 1, AUTOGPU_CUONT="2")
    assert [rank.gpus for rank in ranks] == [[0], [1]]
    assert any("AUTOGPU_CUONT" in line for line in ranks[0].said)
    assert ranks[1].said == []
