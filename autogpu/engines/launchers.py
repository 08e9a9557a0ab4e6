"""Find the local rank of a process from its environment variables.

A launcher, such as torchrun, starts several processes together on one host, and numbers them from 0. This number is the
process's local rank. The ranks of a job divide the pool (the GPUs that the job may use) in the pool's order. No rank
takes the GPU of another rank. All functions are pure.
"""

from __future__ import annotations

import re
from typing import Any, Mapping, Sequence

from autogpu.engines.model import LONE_RANK, WORKERS, LocalRank, with_scripts_list
from autogpu.errors import raise_if_from_script
from autogpu.frozen import replace
from autogpu.variables import CUDA_VISIBLE_DEVICES, LIBRARY_COUNT, WORKER

TF_CONFIG = "TF_CONFIG"

_MASTER = ("MASTER_ADDR", "MASTER_PORT")
# A user may start torchrun twice on one host for the same job. Each of these agents numbers its ranks from 0.
# So autogpu treats the ranks of one agent as a job of their own, whose name contains GROUP_RANK, the agent's number.
_AGENT = ("MASTER_ADDR", "GROUP_RANK", "MASTER_PORT")
_GLOO = ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT")
_NOWHERE = ("", "")

# autogpu uses the first launcher in this table that started the process. If mpirun runs inside a Slurm step, mpirun's
# ranks count, not Slurm's. So the innermost launcher comes first. Each entry describes one launcher. It has the
# launcher's name, the variable that holds the local rank, the variable that holds the number of ranks on the host, and
# the variables that identify the job. The first of these job variables holds the host where the job's ranks meet
# (``""`` if the launcher sets no such variable). If the last of them is not set, autogpu can't name the job.
_LAUNCHERS = (
    ("Horovod", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", _GLOO),
    ("torchrun", LONE_RANK, "LOCAL_WORLD_SIZE", _AGENT),
    ("DeepSpeed", LONE_RANK, "LOCAL_SIZE", _MASTER),
    ("Open MPI", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", ("", "PMIX_NAMESPACE")),
    ("MPICH", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", _NOWHERE),
    ("MVAPICH", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE", _NOWHERE),
    ("jsrun", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE", _NOWHERE),
    ("Slurm", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", ("", "SLURM_JOB_ID", "SLURM_STEP_ID")),
)

# autogpu reads at most this many tasks from one entry of Slurm's ``--gpu-bind`` list.
_MOST_TASKS = 4096

_LOCALHOST = ("localhost", "127.0.0.1", "::1", "[::1]")

# If the cluster of TF_CONFIG has parameter servers, tasks of these types compute nothing on a GPU.
_COORDINATING = ("ps", "chief", "master")


def local_rank(environ: Mapping[str, str], namespace: str = "") -> LocalRank | None:
    """Return the local rank that a launcher gave to this process; ``None`` if no launcher started it.

    Args:
        namespace: The pid namespace of this process. If the ranks meet at ``localhost``, it is part of the job's name.
    """
    told = [rank for rank in (_by_launcher(environ, namespace, *names) for names in _LAUNCHERS) if rank]
    if not told or told[0].size == 1:
        # If a launcher started only this process on this host, the process may itself start several ranks.
        return _worker(environ) or _lone_rank(environ, namespace) or _of_cluster(environ, namespace)
    # A wrapper script may set the variables of several launchers for the same ranks. Take the first job name.
    same = (each.job for each in told if (each.rank, each.size) == (told[0].rank, told[0].size))
    return replace(told[0], job=next(filter(None, same), ""))


def _by_launcher(
    environ: Mapping[str, str], namespace: str, launcher: str, rank_name: str, size_name: str, meeting: Sequence[str]
) -> LocalRank | None:
    is_slurm = launcher == "Slurm"
    rank = _integer(environ.get(rank_name))
    size = _tasks_on_node(environ, size_name) if is_slurm else _integer(environ.get(size_name))
    # In a batch script, outside of a step, Slurm also sets SLURM_LOCALID: to 0 for every process.
    if rank is None or size is None or rank >= size or (is_slurm and "SLURM_STEP_ID" not in environ):
        return None
    return LocalRank(rank, size, launcher, job=_meeting(environ, meeting, namespace))


def rank_env(environ: Mapping[str, str]) -> Sequence[str | None]:
    """Return the values of the rank variables that a program may set for its own processes after it has started."""
    return [environ.get(name) for name in (TF_CONFIG, WORKER, LONE_RANK, "WORLD_SIZE", *_MASTER)]


def is_launched(environ: Mapping[str, str]) -> bool:
    # Slurm sets SLURM_LOCALID in batch scripts, too. So this variable does not prove that Slurm launched a rank.
    return TF_CONFIG in environ or any(name in environ for launcher, name, *_ in _LAUNCHERS if launcher != "Slurm")


def worker_marker(number: int, count: int, job: str) -> str:
    return f"{number}/{count}/{job}"


def library_count(rank: LocalRank | None, environ: Mapping[str, str]) -> int:
    """Return the number of GPUs that autogpu reported to Lightning, which starts a rank for each.

    Return 0 if Lightning did not start this process, or did not ask for the number.
    """
    told = _integer(environ.get(LIBRARY_COUNT)) or 0
    return told if rank is not None and rank.launcher == LONE_RANK else 0


def _worker(environ: Mapping[str, str]) -> LocalRank | None:
    found = re.fullmatch("([0-9]{1,6})/([0-9]{1,6})/([0-9a-zA-Z.]{1,64})", environ.get(WORKER, ""))
    if found is None or int(found.group(1)) >= int(found.group(2)):
        return None
    return LocalRank(int(found.group(1)), int(found.group(2)), WORKERS, job=found.group(3))


def _lone_rank(environ: Mapping[str, str], namespace: str) -> LocalRank | None:
    """Return the rank if the launcher sets ``LOCAL_RANK``, but no variable for the number of ranks on this host.

    Such launchers are a shell loop, a script, and Lightning. The number of ranks is then ``WORLD_SIZE``, which may
    count ranks of other hosts.
    """
    rank = _integer(environ.get(LONE_RANK))
    size = _integer(environ.get("WORLD_SIZE")) or 0
    has_size = any(_integer(environ.get(name)) is not None for _, each, name, _ in _LAUNCHERS if each == LONE_RANK)
    if rank is None or has_size or size <= max(1, rank):
        return None
    return LocalRank(rank, size, LONE_RANK, job=_meeting(environ, _MASTER, namespace))


def _meeting(environ: Mapping[str, str], names: Sequence[str], namespace: str) -> str:
    """Return a name for the job, made from the variables in ``names``; ``""`` if the last of them is not set."""
    host, *which = (environ.get(name, "") for name in names)
    host = _as_known(host)
    return _job("ranks", [names[-1], host, *which], host, namespace) if which[-1] else ""


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch("[0-9]{1,6}", text) else None


def _tasks_on_node(environ: Mapping[str, str], name: str) -> int | None:
    """Return how many tasks Slurm runs on this node. Its list for all nodes is like ``"2,4"`` or ``"4(x2),1"``."""
    text = environ.get(name, "")
    node = _integer(environ.get("SLURM_NODEID")) or 0
    for tasks, nodes in re.findall(r"(?<![^,])([0-9]{1,6})(?:\(x([0-9]{1,6})\))?(?![^,])", text):
        node -= int(nodes or 1)
        if node < 0:
            return int(tasks)
    return None


def _of_cluster(environ: Mapping[str, str], namespace: str) -> LocalRank | None:
    """Return this task's rank among the tasks of ``TF_CONFIG``'s cluster that compute on GPUs of this host."""
    cluster, kind, index = _cluster_task(environ)
    own = _host(cluster, kind, index)
    tasks = [task for task in _computing_tasks(cluster) if _host(cluster, *task) == own]
    if own is None or len(tasks) < 2 or (kind, index) not in tasks:
        return None
    addresses = sorted((kind, [str(task) for task in tasks]) for kind, tasks in cluster.items())
    job = _job("cluster", addresses, own, namespace)
    return LocalRank(tasks.index((kind, index)), len(tasks), TF_CONFIG, job=job)


def _computing_tasks(cluster: Mapping[str, Any]) -> list[tuple[str, int]]:
    kinds = [kind for kind in sorted(cluster) if "ps" not in cluster or kind not in _COORDINATING]
    return [(kind, index) for kind in kinds for index in range(len(cluster[kind]))]


def coordinating_task(environ: Mapping[str, str]) -> str:
    """Return the type of this ``TF_CONFIG`` task if it computes nothing on a GPU, such as ``"ps"``; else ``""``."""
    cluster, kind, _ = _cluster_task(environ)
    return kind if "ps" in cluster and kind in _COORDINATING else ""


def _cluster_task(environ: Mapping[str, str]) -> tuple[Mapping[str, Any], str, int]:
    """Return the cluster of ``TF_CONFIG``, and the type and index of this task. A malformed cluster counts as empty."""
    if TF_CONFIG in environ:
        import json  # imported only here: few processes have TF_CONFIG

        try:
            config = json.loads(environ[TF_CONFIG])
            cluster = config["cluster"]
            task = config["task"]
            if all(isinstance(tasks, list) for tasks in cluster.values()):
                return cluster, str(task["type"]), int(task["index"])
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise_if_from_script(error)  # the framework itself reports a malformed TF_CONFIG
    return {}, "", 0


def _job(kind: str, addresses: Sequence[Any], host: str, namespace: str) -> str:
    """Return a job's name, made from the addresses where its processes meet. No two jobs use a port at once."""
    import hashlib

    where = repr((addresses, namespace if host == _LOCALHOST[0] else ""))
    return f"{kind}.{hashlib.sha256(where.encode(errors='replace')).hexdigest()[:16]}"


def _host(cluster: Mapping[str, Any], kind: str, index: int) -> str | None:
    tasks = cluster.get(kind, ())
    address = tasks[index] if 0 <= index < len(tasks) else None
    return _as_known(address.rpartition(":")[0].lower()) if isinstance(address, str) else None


def _as_known(host: str) -> str:
    return _LOCALHOST[0] if host.lower() in ("", *_LOCALHOST) else host


def among_same_gpus(rank: LocalRank, environ: Mapping[str, str], of_launcher: str | None = None) -> LocalRank:
    """Return ``rank`` with its ``dividers``: the number of ranks that divide the GPUs which this rank sees.

    Args:
        of_launcher: ``CUDA_VISIBLE_DEVICES`` of the launcher. If a rank's value differs, the rank has its own GPU list.
    """
    visible = environ.get(CUDA_VISIBLE_DEVICES)
    bound = _ranks_per_bound_gpu(rank, environ)
    if bound is not None:
        return replace(rank, dividers=bound)
    return rank if visible in (None, of_launcher) else with_scripts_list(rank, len((visible or "").split(",")))


def _ranks_per_bound_gpu(rank: LocalRank, environ: Mapping[str, str]) -> int | None:
    """Return how many tasks of Slurm use the same GPUs as this task; ``None`` if Slurm did not write the GPU list.

    If Slurm bound no task to a GPU, all tasks use the same GPUs.
    """
    # Under device cgroups each Slurm task counts its GPUs from 0. So tasks with different GPUs may have equal lists.
    lists = [environ.get(name) for name in (CUDA_VISIBLE_DEVICES, "SLURM_STEP_GPUS")]
    on_node = _integer(environ.get("SLURM_GPUS_ON_NODE"))
    if rank.launcher != "Slurm" or on_node is None:
        return None
    of_task, of_step = (0 if text is None else len(text.split(",")) for text in lists)
    if not 0 < of_task == of_step <= on_node:
        return None
    bound = _bound_gpus(environ)
    if bound:
        of_ranks = [bound[number % len(bound)] for number in range(rank.size)]
        return of_ranks.count(of_ranks[rank.rank])
    return -(-rank.size * of_task // on_node)


def _bound_gpus(environ: Mapping[str, str]) -> list[str]:
    """Return the entries of Slurm's ``--gpu-bind=map_gpu`` or ``mask_gpu``, one for each task; empty without them.

    Tasks with the same entry have the same GPUs. The entry ``0*2`` gives GPU 0 to two tasks. Source: srun(1).
    """
    found = re.search("(?:map|mask)_gpu:([0-9a-fA-Fx*,]+)", environ.get("SLURMD_TRES_BIND", ""))
    bound: list[str] = []
    for entry in found.group(1).split(",") if found else ():
        gpus, _, tasks = entry.partition("*")
        bound += [gpus] * min(_integer(tasks) or 1, _MOST_TASKS)
    return bound
