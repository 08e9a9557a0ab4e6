"""The GPUs that an engine granted to a process, and the process's rank among those of its job. Pure values."""

from __future__ import annotations

import enum
from typing import Mapping

from autogpu.devices.enumeration import takeable
from autogpu.devices.model import Inventory
from autogpu.frozen import Value, replace
from autogpu.variables import RAY_WORKER

# Dask sets it, as Ray sets RAY_WORKER, before a worker's Python starts, and CUDA_VISIBLE_DEVICES only afterwards.
DASK_WORKER = "__DASK_PARENT_PID"

# Launchers of which a rank is known by fewer variables: by LOCAL_RANK alone, and Python's own processes.
LONE_RANK = "LOCAL_RANK"
WORKERS = "multiprocessing"


class LocalRank(Value):
    """One of ``size`` processes that ``launcher`` started on this host, counted from 0.

    Attributes:
        size: Where ``launcher`` is ``LOCAL_RANK`` those of other hosts may be among them; see :meth:`at_most`.
        dividers: How many of them divide what this one sees; ``None`` for all. 1 for a process whose GPUs are its own.
        job: Is the same for all of them, and for no other job of the host; ``""`` where that can't be told.
    """

    rank: int
    size: int
    launcher: str
    dividers: int | None = None
    job: str = ""

    def slice(self, gpu_count: int) -> tuple[range, int]:
        """This rank's GPUs, as numbers among ``gpu_count`` of them, and how many ranks have each of those."""
        dividers = self.at_most(gpu_count)
        rank = self.rank % dividers
        each = gpu_count // dividers
        if each:
            return range(rank * each, rank * each + each), 1
        number = rank * gpu_count // dividers
        first, after = (-(-each * dividers // gpu_count) for each in (number, number + 1))
        return range(number, number + 1), after - first

    def firsts(self, gpu_count: int) -> list[int]:
        """The first GPU of each rank, as numbers among ``gpu_count`` of them, in the order of the ranks."""
        return [replace(self, rank=rank).slice(gpu_count)[0][0] for rank in range(self.at_most(gpu_count))]

    def at_most(self, gpu_count: int) -> int:
        """How many ranks divide ``gpu_count`` GPUs: one on each at most, where ranks of other hosts may be counted."""
        if self.dividers is not None:
            return self.dividers
        return max(1, min(self.size, gpu_count)) if self.launcher == LONE_RANK else self.size


def with_scripts_list(rank: LocalRank, gpu_count: int) -> LocalRank:
    """``rank`` where its script has listed that many GPUs; with fewer than there are ranks, each has its own."""
    # A size that counts the ranks of other hosts as well tells less.
    is_own = gpu_count == 1 if rank.launcher == LONE_RANK else gpu_count < rank.size
    return replace(rank, dividers=1 if is_own else None)


class Denial(enum.Enum):
    """Why a process gets no GPU from its engine."""

    COORDINATOR = enum.auto()  # a task of TF_CONFIG that computes nothing
    RAY_ASSIGNED_NONE = enum.auto()
    SLURM_GRANTED_NONE = enum.auto()
    UNKNOWN_WHICH = enum.auto()  # the engine granted some of the host's GPUs and does not say which


class Grant(Value):
    """The part of the host's GPUs that this process may use, and the engine that manages them, if there is one.

    Attributes:
        denial: Why the process gets no GPU; ``None`` if it may use some.
        role: The type of a coordinating task in ``TF_CONFIG``: ``ps``, ``chief`` or ``master``.
        fraction: The part of each GPU that was granted; ``None`` for all of it.
        visible: Stands for ``CUDA_VISIBLE_DEVICES`` where the engine leaves it unset; ``None`` for every GPU.
        unnamed: How many GPUs were granted, if it is not certain which; see :func:`settled`.
        on_host: How many GPUs the host has, for ``Denial.UNKNOWN_WHICH``.
        counts_by_bus: The engine's numbers are positions in PCI bus order, whatever CUDA counts by.
        has_ended: True if only the variables of the engine's job are left, and the job seems to have ended.
        task: What the engine calls what runs here.
        job: Identifies the grant: all processes that share it have the same value, and no others on the host.
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
        """True if the engine granted no GPU; a coordinating task may have GPUs that its user asks for."""
        return self.denial not in (None, Denial.COORDINATOR)

    @property
    def is_first(self) -> bool:
        """This process speaks for all of its launcher's on this host."""
        return self.rank is None or self.rank.rank == 0

    @property
    def dividing_rank(self) -> LocalRank | None:
        """The rank of a process that divides what it sees with the others of its job; ``None`` for every other one."""
        return None if self.rank is None or self.rank.dividers == 1 else self.rank

    @property
    def dividing_job(self) -> str:
        """The job whose ranks divide what they see; ``""`` where this process is no rank of one."""
        return "" if self.dividing_rank is None or self.engine else self.dividing_rank.job


NO_ENGINE = Grant()


def settled(grant: Grant, inventory: Inventory | None) -> Grant:
    """Return the grant, with the GPUs settled if the engine only said how many.

    If the driver shows no more GPUs than that, all of them are granted. Otherwise ``visible`` counts if it is set, and
    without it the process gets none.
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
    """An engine manages this process, and may set its variables after the interpreter's start."""
    return RAY_WORKER in environ or DASK_WORKER in environ
