"""Ranks that Open MPI and MPICH start on one simulated server, checked by the driver's log."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass

import pytest

from tests.engines.engine_jobs import TIMEOUT_S, WHOLE, Run, configurations, end_all, lines_of_autogpu
from tests.gpusim import Gpu, Server

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Launcher:
    """The command of an MPI launcher, and the variable in which it sets the local rank."""

    command: tuple[str, ...]
    rank: str


OPEN_MPI = Launcher(("mpirun.openmpi", "--oversubscribe"), "OMPI_COMM_WORLD_LOCAL_RANK")
MPICH = Launcher(("mpirun.mpich",), "MPI_LOCALRANKID")
LAUNCHERS = pytest.mark.parametrize("launcher", [OPEN_MPI, MPICH], ids=["open-mpi", "mpich"])


@pytest.fixture
def run(tmp_path, lease_folder, small_python, monkeypatch):
    """Return a function that runs ranks on a server of ``gpus``.

    It returns the memory of each rank and autogpu's lines of each rank, in the order of ranks.
    """
    for name in [name for name in os.environ if name.startswith(("OMPI_", "PMI_", "MPI_"))]:
        monkeypatch.delenv(name)

    def run(
        launcher, gpus, ranks, each=1, job=(), python=small_python, wrapper="exec {command}", fails=False, **environ
    ):
        if shutil.which(launcher.command[0]) is None:
            pytest.skip(f"{launcher.command[0]} is not installed (Debian: openmpi-bin, mpich)")
        rank = f"${launcher.rank}"
        jobs, start = Run(tmp_path / "run", ranks * each), tmp_path / "start.sh"
        # Each rank has its own file for stderr, so that the lines of several ranks don't mix.
        start.write_text(wrapper.format(rank=rank, command=f"{' '.join(jobs.command(python, *job))} 2>>stderr.{rank}"))
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        with Server(gpus, folder=tmp_path) as server:
            try:
                done = server.run(
                    [*launcher.command, "-n", str(ranks), "sh", str(start)],
                    environ={**root, **environ},
                    cwd=str(tmp_path),
                    stdin=subprocess.DEVNULL,
                    timeout=TIMEOUT_S,
                )
            finally:
                left = end_all(server, timeout_s=10)
            errors = [(tmp_path / f"stderr.{rank}").read_text(errors="replace") for rank in range(ranks)]
            assert (done.returncode != 0, left) == (fails, []), (done.stderr, errors)
            return [each.gpus for each in jobs.taken(server)], [lines_of_autogpu(text) for text in errors]

    return run


BUSY = Gpu(processes={5004242: "10GiB"}, utilization=90)
FOUR = [Gpu()] * 4
TWO_IDLE = [BUSY, Gpu()] * 2
ONE_EACH = [{gpu: "whole"} for gpu in range(4)]
OUT = "autogpu: out of memory on GPU 0 (24.0 GiB): limited to"
GIVES = "export CUDA_VISIBLE_DEVICES={rank}\n"
AS_HOROVOD = "set -m\nexport HOROVOD_LOCAL_RANK={rank} HOROVOD_LOCAL_SIZE=2\n{command}\nexit $?\n"


@LAUNCHERS
@pytest.mark.parametrize(
    ("gpus", "options", "expected"),
    [
        pytest.param(FOUR, {}, ONE_EACH, id="one-gpu-for-each-rank"),
        pytest.param([BUSY, *FOUR[1:]], {}, ONE_EACH[2:], id="fewer-ranks-than-gpus"),
        pytest.param(FOUR, {}, [{gpu: "11.50 GiB"} for gpu in (0, 0, 1, 1, 2, 2, 3, 3)], id="two-ranks-for-each-gpu"),
        pytest.param(FOUR, {"wrapper": GIVES + "exec {command}\n"}, ONE_EACH, id="wrapper-lists-one-gpu"),
        pytest.param(FOUR, {"wrapper": GIVES + "{command}\nexit $?\n"}, ONE_EACH, id="waiting-wrapper-lists-one-gpu"),
        pytest.param(FOUR, {"CUDA_VISIBLE_DEVICES": "0"}, [{0: "5.50 GiB"}] * 4, id="shell-lists-one-gpu-for-all"),
        pytest.param(TWO_IDLE, {"wrapper": AS_HOROVOD}, ONE_EACH[1::2], id="waiting-wrapper-sets-horovod-variables"),
    ],
)
def test_each_mpi_rank_gets_its_share_and_only_the_first_prints(run, launcher, gpus, options, expected):
    taken, said = run(launcher, gpus, len(expected), **options)
    assert taken == expected, said
    assert [bool(lines) for lines in said] == [True] + [False] * (len(expected) - 1), said


@LAUNCHERS
def test_tf_config_workers_that_one_mpi_rank_starts_get_a_gpu_each(run, launcher):
    first, second = configurations("worker", "worker")
    wrapper = 'TF_CONFIG="$FIRST" {command} &\nTF_CONFIG="$SECOND" {command} &\nwait\n'
    environ = {"FIRST": first, "SECOND": second, "AUTOGPU_COUNT": "all"}
    taken, said = run(launcher, FOUR[:2], 1, each=2, wrapper=wrapper, **environ)
    assert (taken, len(said[0])) == (ONE_EACH[:2], 1), said


@LAUNCHERS
def test_rank_beside_an_unmanaged_process_is_capped(run, launcher):
    taken, said = run(launcher, [BUSY, *FOUR[1:]], 4)
    # The CUDA context takes a part of the 14 GiB that are free.
    assert taken == [{0: "13.50 GiB"}, *ONE_EACH[1:]]
    assert "memory limited by other jobs" in said[0][1], said


@LAUNCHERS
@pytest.mark.tensorflow
def test_two_tensorflow_ranks_get_half_of_a_gpu_each(run, launcher, tensorflow_python):
    taken, said = run(launcher, FOUR[:1], 2, python=tensorflow_python, job=(9, "tensorflow"))
    assert taken == [{0: "11.50 GiB"}] * 2, said
    assert [bool(lines) for lines in said] == [True, False], said


@LAUNCHERS
@pytest.mark.tensorflow
@pytest.mark.parametrize("job", ["gpu_of_each_rank", "session_of_each_rank"])
@pytest.mark.parametrize(
    "late",
    [
        pytest.param("", id="both-ranks-at-once", marks=pytest.mark.turns(3, 0)),
        pytest.param("0", id="rank-0-later", marks=pytest.mark.turns(3, 1)),
        pytest.param("1", id="rank-1-later", marks=pytest.mark.turns(3, 2)),
    ],
)
def test_mpi_ranks_that_use_the_gpu_of_their_number_get_idle_gpus(run, launcher, late, job, tensorflow_python):
    # The late rank starts when the other rank has its GPU.
    wrapper = f"[ {{rank}} != '{late}' ] || until [ -e run/*.json ]; do sleep 0.1; done\nexec {{command}}\n"
    taken, said = run(launcher, TWO_IDLE, 2, python=tensorflow_python, job=(WHOLE, job), wrapper=wrapper)
    assert taken == ONE_EACH[1::2], said


@LAUNCHERS
def test_rank_that_runs_out_of_memory_prints_the_cause(run, launcher):
    _, said = run(launcher, FOUR[:1], 2, job=(WHOLE, "toyflow", "1"), fails=True)
    assert len(said[0]) == 1, said
    assert said[1][0].startswith(f"{OUT} 11.5 GiB by other ranks on the GPU; had "), said
    assert said[1][-1] == "autogpu: for more memory: start fewer ranks on each GPU"
