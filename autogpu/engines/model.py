"""The GPUs that an engine granted to a process, and the process's rank in its job. Pure functions."""

from __future__ import annotations

import enum
from typing import Mapping

from autogpu.devices.enumeration import takeable
from autogpu.devices.model import Inventory
from autogpu.frozen import Value, replace
from autogpu.variables import RAY_WORKER

# Dask sets this variable before a worker's Python starts, and CUDA_VISIBLE_DEVICES only afterwards. Ray does the same
# with RAY_WORKER.
DASK_WORKER = "__DASK_PARENT_PID"

# Values of LocalRank.launcher: for a launcher that sets LOCAL_RANK without a local size, and for Python's
# multiprocessing.
LONE_RANK = "LOCAL_RANK"
WORKERS = "multiprocessing"


class LocalRank(Value):
    """A process's rank among the processes that ``launcher`` started on this host.

    Attributes:
        rank: Counted from 0.
        size: Number of these processes; may include other hosts for the launcher ``LOCAL_RANK``, see :meth:`at_most`.
        dividers: How many ranks divide the GPUs that this rank sees; ``None`` for all ranks, 1 if the GPUs are its own.
        job: Identifier of the job, the same for all of its ranks and for no other job of the host; ``""`` if unknown.
    """

    rank: int
    size: int
    launcher: str
    dividers: int | None = None
    job: str = ""

    def slice(self, gpu_count: int) -> tuple[range, int]:
        """Return this rank's GPUs, as indices into ``gpu_count`` GPUs, and how many ranks share each of them."""
        dividers = self.at_most(gpu_count)
        rank = self.rank % dividers
        each = gpu_count // dividers
        if each:
            return range(rank * each, rank * each + each), 1
        number = rank * gpu_count // dividers
        first, after = (-(-each * dividers // gpu_count) for each in (number, number + 1))
        return range(number, number + 1), after - first

    def firsts(self, gpu_count: int) -> list[int]:
        """Return the index of each rank's first GPU among ``gpu_count`` GPUs, in the order of the ranks."""
        return [replace(self, rank=rank).slice(gpu_count)[0][0] for rank in range(self.at_most(gpu_count))]

    def at_most(self, gpu_count: int) -> int:
        """Return how many ranks divide the GPUs; no more than there are GPUs if ``size`` may include other hosts."""
        if self.dividers is not None:
            return self.dividers
        return max(1, min(self.size, gpu_count)) if self.launcher == LONE_RANK else self.size


def with_scripts_list(rank: LocalRank, gpu_count: int) -> LocalRank:
    """Return ``rank`` with new ``dividers``, for a script that has set a list of ``gpu_count`` GPUs itself."""
    # A list of fewer GPUs than ranks means that each rank has its own list. If the size may include ranks of other
    # hosts, only a list of one GPU shows this.
    is_own = gpu_count == 1 if rank.launcher == LONE_RANK else gpu_count < rank.size
    return replace(rank, dividers=1 if is_own else None)


class Denial(enum.Enum):
    """Why a process gets no GPU from its engine."""

    COORDINATOR = enum.auto()  # a TF_CONFIG task that only coordinates
    RAY_ASSIGNED_NONE = enum.auto()
    SLURM_GRANTED_NONE = enum.auto()
    UNKNOWN_WHICH = enum.auto()  # the engine granted some of the host's GPUs, but it is unknown which


class Grant(Value):
    """The part of the host's GPUs that this process may use, and the engine that manages them, if there is one.

    Attributes:
        denial: Why the process gets no GPU; ``None`` if it may use some.
        role: The type of a coordinating task in ``TF_CONFIG``: ``ps``, ``chief`` or ``master``.
        fraction: The part of each GPU that was granted; ``None`` for the whole GPU.
        visible: The list that applies if the engine leaves ``CUDA_VISIBLE_DEVICES`` unset; ``None`` for every GPU.
        unnamed: How many GPUs were granted, if it is not certain which; see :func:`settled`.
        on_host: How many GPUs the host has, for ``Denial.UNKNOWN_WHICH``.
        counts_by_bus: True if the engine numbers GPUs in PCI bus order, whatever ``CUDA_DEVICE_ORDER`` is.
        has_ended: True if only the variables of the engine's job are left, and the job seems to have ended.
        task: The engine's name for the task that runs in this process.
        job: Identifier of the grant, the same for all processes that share it and for no others on the host.
    """

    engine: str = ""
    denial: Denial | None = None
    role: str = ""
    fraction: float | None = None
    visible: str | None = None
    unnamed: int | None = None
    on_host: int = 0
    counts_by_bus: bool = False
    has_ended: bool = False
    rank: LocalRank | None = None
    task: str = ""
    job: str = ""

    @property
    def is_none(self) -> bool:
        """True if the engine granted no GPU. False for a coordinating task, whose user may ask for GPUs."""
        return self.denial not in (None, Denial.COORDINATOR)

    @property
    def is_first(self) -> bool:
        """True if this process prints the messages for all ranks of its launcher on this host."""
        return self.rank is None or self.rank.rank == 0

    @property
    def dividing_rank(self) -> LocalRank | None:
        """The process's rank if it divides the GPUs that it sees with other ranks of its job; else ``None``."""
        return None if self.rank is None or self.rank.dividers == 1 else self.rank

    @property
    def dividing_job(self) -> str:
        """The job of :attr:`dividing_rank`; ``""`` if there is no such rank, or if an engine manages the GPUs."""
        return "" if self.dividing_rank is None or self.engine else self.dividing_rank.job


NO_ENGINE = Grant()


def settled(grant: Grant, inventory: Inventory | None) -> Grant:
    """Return the grant; if the engine granted only a number of GPUs, determine the granted GPUs.

    If the driver shows no more GPUs than were granted, all of them are granted. Otherwise ``visible`` applies if it is
    set. Without it the process gets no GPU.
    """
    if grant.unnamed is None or grant.denial or inventory is None:
        return grant
    on_host = len(takeable(inventory.devices))
    if on_host <= grant.unnamed:
        return replace(grant, unnamed=None, visible=None)
    if grant.visible is not None:
        return replace(grant, unnamed=None)
    return replace(grant, denial=Denial.UNKNOWN_WHICH, on_host=on_host)


def is_engine_worker(environ: Mapping[str, str]) -> bool:
    """True if an engine manages this process and may set its variables after the interpreter's start."""
    return RAY_WORKER in environ or DASK_WORKER in environ
