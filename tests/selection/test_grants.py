"""Which rank this process is, and which GPUs are its own."""

from __future__ import annotations

import pytest

from autogpu.selection.grants import LocalRank, local_rank

OMPI = {"OMPI_COMM_WORLD_LOCAL_RANK": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
SLURM = {"SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "4(x2)"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({}, None, id="alone"),
        pytest.param(OMPI, LocalRank(2, 4, "Open MPI"), id="open-mpi"),
        pytest.param({"MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, LocalRank(1, 2, "MPICH"), id="mpich"),
        pytest.param({**SLURM, "SLURM_STEP_ID": "0"}, LocalRank(1, 4, "Slurm"), id="slurm-step"),
        pytest.param(SLURM, None, id="slurm-batch-script"),
        pytest.param({**SLURM, "SLURM_STEP_ID": "0", **OMPI}, LocalRank(2, 4, "Open MPI"), id="innermost-first"),
        pytest.param({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, None, id="one-rank-is-alone"),
        pytest.param({"LOCAL_RANK": "0"}, None, id="no-size"),
        pytest.param({"LOCAL_RANK": "x", "LOCAL_WORLD_SIZE": "2"}, None, id="garbage"),
        pytest.param({"LOCAL_RANK": "5", "LOCAL_WORLD_SIZE": "2"}, None, id="out-of-range"),
    ],
)
def test_rank(environ, expected):
    assert local_rank(environ) == expected


@pytest.mark.parametrize(
    ("size", "gpus", "expected"),
    [
        (4, 4, [([0], 1), ([1], 1), ([2], 1), ([3], 1)]),
        (2, 4, [([0, 1], 1), ([2, 3], 1)]),
        (3, 4, [([0], 1), ([1], 1), ([2], 1)]),
        (4, 2, [([0], 2), ([0], 2), ([1], 2), ([1], 2)]),
        (3, 2, [([0], 2), ([0], 2), ([1], 2)]),
    ],
)
def test_share(size, gpus, expected):
    shares = [LocalRank(rank, size, "").share(gpus) for rank in range(size)]
    assert [(list(positions), sharers) for positions, sharers in shares] == expected
