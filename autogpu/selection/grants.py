"""What an engine or launcher granted to this process, by the variables that it set. Pure.

Ranks belong together: they share the pool in its own order, never take one another's GPU and never wait for it.
"""

from __future__ import annotations

import re

from autogpu.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping

# Innermost launcher first: an mpirun inside a Slurm step means its own ranks. Each: rank, number of ranks on the host.
_LAUNCHERS = (
    ("Horovod", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    ("torchrun", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("Open MPI", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPICH", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("MVAPICH", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("jsrun", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"),
    ("Slurm", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
)

# Ray and Dask set these before a worker's first line of Python runs, and CUDA_VISIBLE_DEVICES only after it.
_ENGINE_WORKERS = ("RAY_RAYLET_PID", "__DASK_PARENT_PID")


@frozen
class LocalRank:
    """One of ``size`` processes that ``launcher`` started on this host; ``rank`` counts from 0."""

    rank: int
    size: int
    launcher: str

    def share(self, gpu_count: int) -> tuple[range, int]:
        """This rank's positions among ``gpu_count`` GPUs, and how many ranks have each of them."""
        if self.size <= gpu_count:
            each = gpu_count // self.size
            return range(self.rank * each, self.rank * each + each), 1
        position = self.rank * gpu_count // self.size
        return range(position, position + 1), -(-self.size // gpu_count)


def local_rank(environ: Mapping[str, str]) -> LocalRank | None:
    """The rank of this process; ``None`` for one that was not started as one of several."""
    for launcher, rank_name, size_name in _LAUNCHERS:
        # Below a batch script, too, Slurm sets a local id, 0 for everything that runs there.
        if launcher == "Slurm" and "SLURM_STEP_ID" not in environ:
            continue
        # Slurm writes "4(x2)" for four tasks on each of two nodes.
        rank, size = (re.match(r"\d+", environ.get(name, "")) for name in (rank_name, size_name))
        if rank and size and int(rank.group()) < int(size.group()):
            alone = int(size.group()) == 1
            return None if alone else LocalRank(int(rank.group()), int(size.group()), launcher)
    return None


def is_engine_worker(environ: Mapping[str, str]) -> bool:
    """Whether an engine manages this process and may set its variables after the interpreter's start."""
    return any(name in environ for name in _ENGINE_WORKERS)
