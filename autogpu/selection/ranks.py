"""A process's place among those that a launcher started with it on this host. Pure.

Ranks belong together: they share the pool in its own order and never take one another's GPU.
"""

from __future__ import annotations

import re

from autogpu.frozen import frozen, replace
from autogpu.variables import CUDA_VISIBLE_DEVICES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, Sequence

TF_CONFIG = "TF_CONFIG"
LONE_RANK = "LOCAL_RANK"
WORKERS = "multiprocessing"

# Innermost launcher first: an mpirun inside a Slurm step means its own ranks. Each: rank, number of ranks on the host.
_LAUNCHERS = (
    ("Horovod", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    ("torchrun", LONE_RANK, "LOCAL_WORLD_SIZE"),
    ("DeepSpeed", LONE_RANK, "LOCAL_SIZE"),
    ("Open MPI", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPICH", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("MVAPICH", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("jsrun", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"),
    ("Slurm", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
)
RANK_VARIABLES = {LONE_RANK: LONE_RANK, **{launcher: rank_name for launcher, rank_name, _ in _LAUNCHERS}}

# Where the ranks of one job meet: at any moment a port belongs to one job alone.
MEETING = ("MASTER_ADDR", "MASTER_PORT")

_LOCALHOST = ("localhost", "127.0.0.1", "::1", "[::1]")

# Of a cluster with parameter servers, those that compute nothing on a GPU.
_COORDINATING = ("ps", "chief", "master")


@frozen
class LocalRank:
    """One of ``size`` processes that ``launcher`` started on this host.

    Attributes:
        rank: Counts from 0.
        size: Where ``launcher`` is ``LOCAL_RANK`` those of other hosts may be among them; see :meth:`at_most`.
        place: Its place among those of them that see the same GPUs as this one, from 0; by default that is ``rank``.
        sharers: How many of them do; by default all. 1 for a process whose GPUs are its own.
        job: Is the same for all of them, and for no other job of the host; ``""`` where that can't be told.
    """

    rank: int
    size: int
    launcher: str
    place: int | None = None
    sharers: int | None = None
    job: str = ""

    def share(self, gpu_count: int) -> tuple[range, int]:
        """This rank's positions among ``gpu_count`` GPUs, and how many ranks have each of those."""
        place = self.rank if self.place is None else self.place
        sharers = self.size if self.sharers is None else self.sharers
        if self._is_of_world and sharers > gpu_count:
            return range(place % gpu_count, place % gpu_count + 1), 1 + place // gpu_count
        if sharers <= gpu_count:
            each = gpu_count // sharers
            return range(place * each, place * each + each), 1
        position = place * gpu_count // sharers
        first, after = (-(-each * sharers // gpu_count) for each in (position, position + 1))
        return range(position, position + 1), after - first

    def at_most(self, gpu_count: int) -> int:
        """How many ranks divide ``gpu_count`` GPUs: one on each at most, where ranks of other hosts may be counted."""
        sharers = self.size if self.sharers is None else self.sharers
        return max(1, min(sharers, gpu_count)) if self._is_of_world else sharers

    @property
    def _is_of_world(self) -> bool:
        return self.launcher == LONE_RANK and self.sharers is None


def local_rank(environ: Mapping[str, str], namespace: str = "") -> LocalRank | None:
    """The rank of this process; ``None`` for one that was not started as one of several.

    Args:
        namespace: Tells this process's container from others, each of which has a ``localhost`` of its own.
    """
    for launcher, rank_name, size_name in _LAUNCHERS:
        # Below a batch script, too, Slurm sets a local id, 0 for everything that runs there.
        if launcher == "Slurm" and "SLURM_STEP_ID" not in environ:
            continue
        rank = _number(environ.get(rank_name))
        size = _tasks_on_node(environ, size_name) if launcher == "Slurm" else _number(environ.get(size_name))
        if rank is not None and size is not None and rank < size:
            if size > 1:
                return LocalRank(rank, size, launcher)
            # The only one that a launcher started here may itself start several.
            return None if rank_name == LONE_RANK else _lone_rank(environ, namespace)
    return _lone_rank(environ, namespace) or _of_cluster(environ, namespace)


def _lone_rank(environ: Mapping[str, str], namespace: str) -> LocalRank | None:
    """Of a launcher that does not say how many there are on this host: a loop in a shell, a script, Lightning's own."""
    rank, (host, port) = _number(environ.get(LONE_RANK)), [environ.get(name, "") for name in MEETING]
    if rank is None or any(_number(environ.get(size)) is not None for _, name, size in _LAUNCHERS if name == LONE_RANK):
        return None
    size = max(_number(environ.get("WORLD_SIZE")) or 0, rank + 1)
    host = _LOCALHOST[0] if _is_local(host) else host
    job = _job("ranks", [host, port], host, namespace) if port else ""
    return None if size == 1 else LocalRank(rank, size, LONE_RANK, job=job)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch("[0-9]{1,6}", text) else None


def _tasks_on_node(environ: Mapping[str, str], name: str) -> int | None:
    """Slurm's ``"2,4"`` or ``"4(x2),1"``: one number for each node, in the order in which the nodes are counted."""
    node = _number(environ.get("SLURM_NODEID")) or 0
    for part in environ.get(name, "").split(","):
        found = re.fullmatch(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?", part)
        if found is None:
            return None
        repeated = int(found.group(2) or 1)
        if node < repeated:
            return int(found.group(1))
        node -= repeated
    return None


def _of_cluster(environ: Mapping[str, str], namespace: str) -> LocalRank | None:
    """The place in ``TF_CONFIG``'s cluster among the tasks of the same host that compute on GPUs."""
    cluster, kind, index = _cluster_task(environ)
    if cluster is None or coordinating_task(environ):
        return None
    own = _host(cluster, kind, index)
    has_servers = "ps" in cluster
    tasks = [
        (each, number)
        for each in sorted(cluster, key=lambda each: (each not in _COORDINATING, each))
        if not (each == "ps" or (has_servers and each in _COORDINATING))
        for number in range(len(cluster[each]))
        if _host(cluster, each, number) == own
    ]
    if own is None or len(tasks) < 2 or (kind, index) not in tasks:
        return None
    addresses = sorted((kind, [str(task) for task in tasks]) for kind, tasks in cluster.items())
    job = _job("cluster", addresses, own, namespace)
    rank = LocalRank(tasks.index((kind, index)), len(tasks), TF_CONFIG, job=job)
    visible = environ.get(CUDA_VISIBLE_DEVICES)
    # Who gives a worker fewer GPUs than there are workers gives each its own.
    is_own = visible is not None and len(visible.split(",")) < rank.size
    return replace(rank, place=0, sharers=1) if is_own else rank


def coordinating_task(environ: Mapping[str, str]) -> str:
    """``"ps"`` or ``"chief"`` for a task of a cluster with parameter servers that only coordinates; else ``""``."""
    cluster, kind, _ = _cluster_task(environ)
    return kind if cluster is not None and "ps" in cluster and kind in _COORDINATING else ""


def _cluster_task(environ: Mapping[str, str]) -> tuple[Any, str, int]:
    """``TF_CONFIG``'s cluster, and the type and index of this task; ``None`` for the cluster if it is not readable."""
    if TF_CONFIG not in environ:
        return None, "", 0
    import json  # not for the many that have no such variable

    try:
        config = json.loads(environ[TF_CONFIG])
        cluster, task = config["cluster"], config["task"]
        kind, index = str(task["type"]), int(task["index"])
        is_sound = isinstance(cluster, dict) and all(isinstance(tasks, list) for tasks in cluster.values())
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None, "", 0  # for its reader to complain about
    return (cluster if is_sound else None), kind, index


def _job(kind: str, addresses: Sequence[Any], host: str, namespace: str) -> str:
    """A name by where the processes meet: a port belongs to one job at a time."""
    import hashlib

    where = repr((addresses, namespace if _is_local(host) else ""))
    return f"{kind}.{hashlib.sha256(where.encode(errors='replace')).hexdigest()[:16]}"


def _host(cluster: Mapping[str, Any], kind: str, index: int) -> str | None:
    tasks = cluster.get(kind, ())
    address = tasks[index] if 0 <= index < len(tasks) else None
    host = address.rpartition(":")[0].lower() if isinstance(address, str) else None
    return _LOCALHOST[0] if host is not None and _is_local(host) else host


def _is_local(host: str) -> bool:
    return host.lower() in ("", *_LOCALHOST)


def among_same_gpus(rank: LocalRank, environ: Mapping[str, str], visible_of: Mapping[int, str | None]) -> LocalRank:
    """``rank`` with its place among the ranks that see the same GPUs.

    A launcher, or a script around each rank, may have given each its own ``CUDA_VISIBLE_DEVICES``.

    Args:
        environ: As this process was started.
        visible_of: By rank, the variable of the launcher's other ranks, as far as it is known.
    """
    visible = environ.get(CUDA_VISIBLE_DEVICES)
    others = {other: value for other, value in visible_of.items() if other != rank.rank and other < rank.size}
    is_known = len(others) == rank.size - 1
    if all(value == visible for value in others.values()):
        bound = _ranks_per_bound_gpu(rank, environ)
        if bound is not None:
            return replace(rank, place=rank.rank % bound, sharers=bound)
        if rank.launcher == LONE_RANK and visible is not None and not others and _is_own(rank, len(visible.split(","))):
            return replace(rank, place=0, sharers=1)  # started by hand, with a GPU of its own
        if not is_known:
            return rank  # those that are not known yet are as those that are
    same = sorted({rank.rank, *(other for other, value in others.items() if value == visible)})
    return replace(rank, place=same.index(rank.rank), sharers=len(same))


def with_scripts_list(rank: LocalRank, gpu_count: int) -> LocalRank:
    """``rank`` where its script has set ``CUDA_VISIBLE_DEVICES`` to that many GPUs, as those of the others do."""
    return replace(rank, place=0, sharers=1) if _is_own(rank, gpu_count) else replace(rank, place=None, sharers=None)


def _is_own(rank: LocalRank, gpu_count: int) -> bool:
    """Whether a list is by its length one rank's own: each gets fewer GPUs than there are ranks."""
    # A size that counts the ranks of other hosts as well tells less.
    return gpu_count == 1 if rank.launcher == LONE_RANK else gpu_count < rank.size


def _ranks_per_bound_gpu(rank: LocalRank, environ: Mapping[str, str]) -> int | None:
    """How many of Slurm's tasks were bound to this one's GPUs; ``None`` where Slurm has bound none.

    Under device cgroups each task counts its GPUs from 0, so that their lists don't tell them apart.
    """
    lists = [environ.get(name) for name in (CUDA_VISIBLE_DEVICES, "SLURM_STEP_GPUS")]
    counts = {None if text is None else len(text.split(",")) for text in lists}
    on_node = _number(environ.get("SLURM_GPUS_ON_NODE"))
    if rank.launcher != "Slurm" or len(counts) != 1 or on_node is None:
        return None
    (count,) = counts
    return -(-rank.size * count // on_node) if count is not None and count < on_node else None
