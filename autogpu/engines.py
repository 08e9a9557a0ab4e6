"""What engines and launchers say beside the variables that they set: read for :mod:`autogpu.selection.grants`."""

from __future__ import annotations

import os
import re
import stat
import sys
from pathlib import Path

from autogpu.process_identity import pid_namespace
from autogpu.selection.grants import RAY_WORKER, EngineFacts, Grant, RayTask, granted
from autogpu.selection.ranks import LONE_RANK, MEETING, RANK_VARIABLES, local_rank
from autogpu.selection.slurm_conf import included_files
from autogpu.selection.visible_devices import initial_visibility
from autogpu.variables import CUDA_VISIBLE_DEVICES, WRITTEN_VISIBLE_DEVICES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator, Mapping

    from autogpu.selection.ranks import LocalRank

# Where Slurm's commands look as well: its daemon sets SLURM_CONF for each job, and salloc does not.
_SLURM_CONFS = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf", "/etc/slurm-llnl/slurm.conf")

# Far more than any of these files has, and than a launcher starts on one host.
_MAX_BYTES = 4 * 1024 * 1024
_MOST_PROCESSES = 2000
_MOST_INCLUDED = 20

# In what _stat returns: fields 4 and 22 of proc(5), counted from the third.
_PARENT, _START = 1, 19


def granted_here(environ: Mapping[str, str]) -> Grant:
    """What was granted to this process.

    Args:
        environ: Of the process; what an autogpu wrote there does not count.
    """
    is_list_ours = CUDA_VISIBLE_DEVICES in environ and environ[CUDA_VISIBLE_DEVICES] == environ.get(
        WRITTEN_VISIBLE_DEVICES
    )
    environ = _before_ours(environ)
    namespace = (pid_namespace() or "").strip("pid:[]")
    rank = local_rank(environ, namespace)
    name = RANK_VARIABLES.get(rank.launcher) if rank is not None else None
    launcher = None if name is None else _launcher(name)
    # Where the variable is unset this process sees every GPU, and so do the others: nothing to compare.
    is_narrowed = CUDA_VISIBLE_DEVICES in environ
    ranks = _ranks(name, launcher, environ) if name and (is_narrowed or is_list_ours) else {}
    visible_of = {rank: other.get(CUDA_VISIBLE_DEVICES) for rank, other in ranks.items()}
    return granted(
        environ,
        EngineFacts(
            slurm_conf=_slurm_conf(environ) if "SLURM_JOB_ID" in environ else None,
            ray=_ray_task() if RAY_WORKER in environ else None,
            pbs_gpus=_text(environ.get("PBS_GPUFILE")) if "PBS_JOBID" in environ else None,
            launcher="" if launcher is None else f"launcher.{launcher}.{_stat(launcher)[_START]}-{namespace}",
            visible_of_ranks=visible_of if is_narrowed else {},
            # Lightning's own launcher is the first of its ranks, and says nothing of the kind to itself.
            launcher_is_rank=name == LONE_RANK and is_list_ours and _is_first_missing(rank, ranks),
            namespace=namespace,
        ),
    )


def _before_ours(environ: Mapping[str, str]) -> Mapping[str, str]:
    """With ``CUDA_VISIBLE_DEVICES`` as it was before the autogpu of an ancestor wrote an order of its own."""
    value = environ.get(CUDA_VISIBLE_DEVICES)
    inherited = initial_visibility(environ, value).inherited
    if inherited == value:
        return environ
    others = {name: text for name, text in environ.items() if name != CUDA_VISIBLE_DEVICES}
    return others if inherited is None else {**others, CUDA_VISIBLE_DEVICES: inherited}


def _slurm_conf(environ: Mapping[str, str]) -> str | None:
    named = environ.get("SLURM_CONF")
    for path in (named,) if named else _SLURM_CONFS:
        text = _text(path)
        if text is not None:
            files = [Path(path).parent / file for file in included_files(text)[:_MOST_INCLUDED]]
            return "\n".join([text, *(_text(str(file)) or "" for file in files)])
    return None


def _text(path: str | None) -> str | None:
    """The text of a plain file; ``None`` where it can't be read, and for a pipe, which could block."""
    if not path:
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        with os.fdopen(descriptor, errors="replace", closefd=False) as file:
            return file.read(_MAX_BYTES)
    except OSError:  # a process that has ended since
        return None
    finally:
        os.close(descriptor)


def _ray_task() -> RayTask | None:
    ray: Any = sys.modules.get("ray")
    try:
        context = ray.get_runtime_context()
        gpus = float(context.get_assigned_resources().get("GPU", 0))
        ids = tuple(map(str, context.get_accelerator_ids().get("GPU", ())))
        return RayTask(gpus, ids, bool(gpus or ray.cluster_resources().get("GPU")))
    except Exception:  # not connected yet, or a Ray that has none of this: the variables are all there is
        return None


def _ranks(name: str, launcher: int | None, environ: Mapping[str, str]) -> Mapping[int, Mapping[str, str]]:
    """By local rank, the variables with which the launcher's processes of this job were started."""
    found: dict[int, Mapping[str, str]] = {}
    # A shell may start several jobs.
    meeting = [environ.get(each) for each in MEETING]
    for pid in _descendants(launcher):
        other = _before_ours(_environ_of(pid))
        number = other.get(name, "")
        if re.fullmatch("[0-9]{1,6}", number) and [other.get(each) for each in MEETING] == meeting:
            # Inner processes come after outer ones: what a script around a rank has set counts.
            found[int(number)] = other
    return found


def _is_first_missing(rank: LocalRank | None, ranks: Mapping[int, object]) -> bool:
    return rank is not None and rank.rank > 0 and 0 not in ranks


def _launcher(name: str) -> int | None:
    """The nearest ancestor that is no rank itself; ``None`` if it can't be told."""
    pid = os.getppid()
    for _ in range(_MOST_PROCESSES):
        if pid < 1:
            return None
        environ = _environ_of(pid)
        if name not in environ:
            # A container's first process may be a launcher; a host's is not, and only root can read it.
            return pid if pid > 1 or environ else None
        pid = int(_stat(pid)[_PARENT])
    return None


def _stat(pid: int) -> list[str]:
    """What follows the name, which may contain anything, in ``/proc/<pid>/stat``; zeros for a process that has gone."""
    fields = (_text(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
    return fields if len(fields) > _START else ["0"] * (_START + 1)


def _descendants(pid: int | None) -> Iterator[int]:
    """Breadth first, without ``pid`` itself."""
    pids = [] if pid is None else [pid]
    for number, each in enumerate(pids):
        if number:
            yield each
        if len(pids) < _MOST_PROCESSES:
            pids += _children(each)


def _children(pid: int) -> list[int]:
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []
    texts = (_text(str(thread / "children")) for thread in threads)
    return [int(child) for text in texts if text for child in text.split()]


def _environ_of(pid: int) -> Mapping[str, str]:
    """The variables that a process was started with; none where they are another user's."""
    pairs = (pair.partition("=") for pair in (_text(f"/proc/{pid}/environ") or "").split("\0"))
    return {name: value for name, _, value in pairs if name}
