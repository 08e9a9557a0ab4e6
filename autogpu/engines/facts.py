"""The facts for :mod:`autogpu.engines.grants`, read from files and processes of engines and launchers."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Any, Callable, Mapping

from autogpu.engines.grants import EngineFacts, granted, included_files
from autogpu.engines.launchers import TF_CONFIG, among_same_gpus, local_rank
from autogpu.engines.model import DASK_WORKER, LONE_RANK, Grant, LocalRank
from autogpu.errors import raise_if_from_script
from autogpu.frozen import replace
from autogpu.lease import is_marked
from autogpu.process import copy_of, parent_and_start, pid_namespace, running, start_time, with_ancestors
from autogpu.selection.visible_devices import InitialVisibility, initial_visibility, original_environ
from autogpu.text import printable
from autogpu.variables import CUDA_VISIBLE_DEVICES, RAY_WORKER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.engines.ray_tasks import RayTask

# The usual paths of Slurm's configuration. Slurm's own commands also read the file from a default path if SLURM_CONF is
# not set, as in a job started by salloc.
_SLURM_CONFS = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf", "/etc/slurm-llnl/slurm.conf")

# Upper limits for reading. No configuration file is longer, and no launcher starts more processes on one host.
_MAX_BYTES = 4 * 1024 * 1024
_MOST_PROCESSES = 2000
_MOST_INCLUDED = 20
_LONGEST_NAME = 64


def granted_here(environ: Mapping[str, str], initial: InitialVisibility | None = None) -> Grant:
    """Return the grant of an engine to this process.

    Args:
        environ: The environment of the process. Values that autogpu wrote there are ignored.
        initial: ``CUDA_VISIBLE_DEVICES`` when the interpreter started; ``None`` if it has not changed since then. Some
            engines set the variable in a worker process later.
    """
    initial = initial or initial_visibility(environ, environ.get(CUDA_VISIBLE_DEVICES))
    environ = original_environ(copy_of(environ))
    now = environ.get(CUDA_VISIBLE_DEVICES)
    has_parents_list = initial.parents_list is not None and now == initial.value
    return granted(
        environ,
        EngineFacts(
            slurm_conf=_slurm_conf(environ),
            started_with=initial.value,
            slurm_job_has_ended=_slurm_job_has_ended(environ),
            ray=_ray_task(environ),
            dask=_dask_worker(environ),
            # A launcher that has claimed GPUs is rank 0 itself, as in Lightning. The other ranks are its children. They
            # inherit its list of GPUs, and choose from the list by their rank number.
            rank=_rank(environ, is_below_rank_0=has_parents_list and is_marked(environ)),
            is_given=now not in (None, initial.value),
        ),
    )


def _slurm_conf(environ: Mapping[str, str]) -> str:
    if "SLURM_JOB_ID" not in environ:
        return ""
    named = environ.get("SLURM_CONF")
    for path in (named,) if named else _SLURM_CONFS:
        text = _text(path)
        if text:
            files = [Path(path).parent / file for file in included_files(text)[:_MOST_INCLUDED]]
            return "\n".join([text, *map(_text, files)])
    return ""


def _slurm_job_has_ended(environ: Mapping[str, str]) -> bool:
    """True if Slurm's daemon runs on this host, but Slurm has no process here for the job in ``SLURM_JOB_ID``.

    A terminal that a job has started keeps the job's variables after the job's end.
    """
    job = environ.get("SLURM_JOB_ID")
    if job is None or any(_is_step_of(job, pid) for pid, _ in with_ancestors()):
        return False
    pids = [pid for pid, *_ in running()]
    # If the daemon is not visible, assume nothing: a container, or a /proc that hides other users, hides the job too.
    has_daemon = any(_text(f"/proc/{pid}/comm") == "slurmd\n" for pid in pids)
    return has_daemon and not any(_is_step_of(job, pid) for pid in pids)


def _is_step_of(job: str, pid: int) -> bool:
    return _text(f"/proc/{pid}/cmdline").startswith(f"slurmstepd: [{job}.")


def _text(path: str | Path) -> str:
    """Return the text of a plain file; ``""`` if it can't be read, and for a pipe, which could block."""
    try:
        with open(path, errors="replace", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
            return file.read(_MAX_BYTES) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else ""
    except (OSError, ValueError) as error:  # the process has ended, or the name has a NUL
        raise_if_from_script(error)
        return ""


def _ray_task(environ: Mapping[str, str]) -> RayTask | None:
    if RAY_WORKER not in environ:
        return None
    from autogpu.engines import ray_tasks  # few processes belong to Ray

    return ray_tasks.current_task(environ)


def before_each_task(environ: Mapping[str, str], call: Callable[[], None]) -> None:
    """Let Ray call ``call`` before each later task that it runs in this process, if this is a worker process of Ray.

    Ray runs several tasks in one process, but a framework asks for its GPUs only in the first of them.
    """
    if RAY_WORKER in environ:
        from autogpu.engines import ray_tasks  # imported only here: few processes belong to Ray

        ray_tasks.before_each_task(call)


def _dask_worker(environ: Mapping[str, str]) -> str:
    if DASK_WORKER not in environ:
        return ""
    distributed: Any = sys.modules.get("distributed")
    try:
        return printable(f"Dask worker {distributed.get_worker().name}", _LONGEST_NAME)
    except Exception as error:  # the process runs no task now
        raise_if_from_script(error)
        return ""


def _rank(environ: Mapping[str, str], *, is_below_rank_0: bool) -> LocalRank | None:
    """Return this process's rank among the ranks that see the same GPUs; ``None`` if it is not a rank.

    If no variable identifies the job of the ranks, the pid of their launcher does.
    """
    namespace = (pid_namespace() or "").strip("pid:[]")
    rank = local_rank(environ, namespace)
    visible = None
    if rank is None or (is_below_rank_0 and rank.launcher == LONE_RANK):
        return None
    launcher = None if rank.launcher == TF_CONFIG else _launcher(rank)
    if launcher is not None:
        # No other launcher of the host has the same pid, start time and namespace.
        rank = replace(rank, job=rank.job or f"launcher.{launcher}.{start_time(launcher) or 0}-{namespace}")
        visible = original_environ(_environ_of(launcher)).get(CUDA_VISIBLE_DEVICES)
    return among_same_gpus(rank, environ, visible)


def is_first_rank_missing(rank: LocalRank | None) -> bool:
    """True if this process is a rank other than 0, and no running process of the user is rank 0 of the same job.

    The rank of another process is read from the variables that it was started with. This misses a rank that sets its
    own number later.
    """
    own = local_rank(_environ_of(os.getpid()))
    if rank is None or own is None or own.rank == 0:
        return False
    first = replace(own, rank=0)
    return all(local_rank(_environ_of(pid)) != first for pid, *_ in running())


def _launcher(rank: LocalRank) -> int | None:
    """Return the pid of this rank's launcher: the nearest ancestor that is not a shell around this rank alone.

    ``None`` if it is unknown.
    """
    pid = os.getppid()
    group = os.getpgrp()
    found = None
    for _ in range(_MOST_PROCESSES):
        environ = {} if pid < 1 else _environ_of(pid)
        # In a container, process 1 may be the launcher. On a host it is not, and only root can read its environment.
        if pid < 1 or (pid == 1 and not environ):
            break
        same = local_rank(environ)
        if same is None or (same.rank, same.size) != (rank.rank, rank.size):
            found = pid
            # If a user starts the ranks by hand, their shell is the launcher. It may have only one child so far, so it
            # must not count as a shell around one rank.
            if rank.launcher == LONE_RANK or pid == group or not _is_shell_of_one_rank(pid, group):
                break
        pid, _ = parent_and_start(pid) or (0, 0)
    return found


def _is_shell_of_one_rank(pid: int, group: int) -> bool:
    """True if ``pid`` may be a shell around one rank: it has one child and belongs to the rank's process group."""
    try:
        children = " ".join(_text(thread / "children") for thread in Path(f"/proc/{pid}/task").iterdir())
        return os.getpgid(pid) == group and len(children.split()) == 1
    except OSError as error:  # the process has ended
        raise_if_from_script(error)
        return False


def _environ_of(pid: int) -> Mapping[str, str]:
    """Return the variables that a process was started with; empty if another user owns the process."""
    pairs = (pair.partition("=") for pair in _text(f"/proc/{pid}/environ").split("\0"))
    return {name: value for name, _, value in pairs if name}
