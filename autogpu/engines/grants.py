"""The grant of an engine to this process. Pure functions of its environment variables and :class:`EngineFacts`."""

from __future__ import annotations

import re
from typing import Mapping, Sequence

from autogpu.engines.launchers import coordinating_task
from autogpu.engines.model import NO_ENGINE, Denial, Grant, LocalRank, is_engine_worker
from autogpu.frozen import Value, replace
from autogpu.variables import CUDA_VISIBLE_DEVICES, RAY_WORKER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.engines.ray_tasks import RayTask

# Slurm copies CUDA_VISIBLE_DEVICES into these variables, unless its gres.conf declares that all GPUs are NVIDIA's.
_COPIES = ("GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


class EngineFacts(Value):
    """Facts about an engine that the environment variables don't contain.

    Attributes:
        slurm_conf: The text of Slurm's configuration; ``""`` if it can't be read.
        dask: The name of the Dask worker that runs this task; ``""`` outside of Dask.
        rank: The rank of this process among the processes that see the same GPUs.
        slurm_job_has_ended: True if Slurm runs on this host, but has no process for the job in ``SLURM_JOB_ID``.
        started_with: ``CUDA_VISIBLE_DEVICES`` when the interpreter started, as it would be without autogpu. The value
            that a script sets later does not change a grant.
        is_given: True if an engine set ``CUDA_VISIBLE_DEVICES`` after the interpreter of this process had started.
    """

    slurm_conf: str = ""
    slurm_job_has_ended: bool = False
    started_with: str | None = None
    ray: RayTask | None = None
    dask: str = ""
    rank: LocalRank | None = None
    is_given: bool = False


def granted(environ: Mapping[str, str], facts: EngineFacts = EngineFacts()) -> Grant:  # noqa: B008  (a value)
    task = coordinating_task(environ)
    if task:
        return Grant("TF_CONFIG", Denial.COORDINATOR, role=task)
    rank = facts.rank
    grant = _ray(environ, facts) or _slurm(environ, facts) or Grant(task=facts.dask)
    if rank is not None and _has_own_gpus(environ, facts):
        rank = replace(rank, dividers=1)
    return replace(grant, rank=rank)


def _has_own_gpus(environ: Mapping[str, str], facts: EngineFacts) -> bool:
    """True if the engine lists only this worker's own GPUs. Otherwise it lists all GPUs of the job for each worker."""
    visible = environ.get(CUDA_VISIBLE_DEVICES)
    task = facts.ray
    if task is not None and task.gpus:
        return visible is None or len(visible.split(",")) <= max(1, task.gpus)
    return facts.is_given and is_engine_worker(environ)


def _ray(environ: Mapping[str, str], facts: EngineFacts) -> Grant | None:
    task = facts.ray
    if RAY_WORKER not in environ or task is None:
        return None
    if not task.gpus:
        none = Grant("Ray", Denial.RAY_ASSIGNED_NONE)
        return replace(none if task.manages_gpus else NO_ENGINE, task=task.name)
    visible = None if CUDA_VISIBLE_DEVICES in environ or not task.ids else ",".join(task.ids)
    fraction = task.gpus if task.gpus < 1 else None
    return Grant("Ray", fraction=fraction, visible=visible, task=task.name, job=f"Ray.{task.worker}")


def _slurm(environ: Mapping[str, str], facts: EngineFacts) -> Grant | None:
    if "SLURM_JOB_ID" not in environ:
        return None
    # A step that was started with --gres=none inherits SLURM_JOB_GPUS from its job, but may use no GPU.
    numbers = environ.get("SLURM_STEP_GPUS" if "SLURM_STEP_ID" in environ else "SLURM_JOB_GPUS")
    visible = facts.started_with
    if visible is None and numbers is None:
        return _slurm_without_gpus(environ) if _manages_gpus(facts.slurm_conf) else NO_ENGINE
    if visible is not None and not _is_slurms_list(environ, visible, numbers):
        return NO_ENGINE  # the user's own list
    return _slurm_with_gpus(environ, facts, visible, numbers)


def _slurm_with_gpus(environ: Mapping[str, str], facts: EngineFacts, visible: str | None, numbers: str | None) -> Grant:
    listed = visible or numbers or ""
    return Grant(
        "Slurm",
        fraction=_fraction_of_shards(environ, facts.slurm_conf, listed) or _fraction_of_mps(environ, facts.slurm_conf),
        # If a user has unset CUDA_VISIBLE_DEVICES, use Slurm's own GPU numbers. These count all GPUs of the host, so
        # `settled` drops them under a device cgroup, which shows only the granted GPUs.
        visible=numbers if visible is None else None,
        unnamed=len(listed.split(",")) if visible is None else None,
        counts_by_bus=True,
        has_ended=facts.slurm_job_has_ended,
        job=f"Slurm.{environ['SLURM_JOB_ID']}.{environ.get('SLURM_STEP_ID', '')}",
    )


def _is_slurms_list(environ: Mapping[str, str], visible: str, numbers: str | None) -> bool:
    """True if ``visible`` can only mean GPUs that Slurm granted, even if a user wrote it.

    UUIDs can't be compared with Slurm's numbers, so they count as granted.

    Args:
        numbers: The numbers of the granted GPUs, from ``SLURM_JOB_GPUS`` or ``SLURM_STEP_GPUS``.
    """
    if not numbers:
        return False
    entries = set(visible.split(","))
    if all(entry.startswith(("GPU-", "MIG-")) for entry in entries):
        return True
    copies = [environ[name] for name in _COPIES if name in environ]
    if copies:
        return any(entries <= set(copy.split(",")) for copy in copies)
    granted = numbers.split(",")
    # Under device cgroups a job counts its GPUs from 0. A task may be bound to some of the GPUs of its step.
    return entries <= set(granted) or entries <= {str(number) for number in range(len(granted))}


def _slurm_without_gpus(environ: Mapping[str, str]) -> Grant:
    on_node = environ.get("SLURM_GPUS_ON_NODE", "")
    is_step = "SLURM_STEP_ID" in environ
    # With --gpu-bind=none, Slurm passes the number of granted GPUs, but no list. A step with --gres=none differs from
    # this case, because it inherits SLURM_JOB_GPUS from its job.
    if is_step and "SLURM_JOB_GPUS" not in environ and re.fullmatch("[1-9][0-9]{0,3}", on_node):
        return Grant("Slurm", unnamed=int(on_node))
    return Grant("Slurm", Denial.SLURM_GRANTED_NONE)


def _fraction_of_shards(environ: Mapping[str, str], conf: str, visible: str) -> float | None:
    shards = environ.get("SLURM_SHARDS_ON_NODE", "")
    if not visible or not re.fullmatch("[0-9]{1,6}", shards):
        return None
    on_node = _gres_of_node(conf, environ.get("SLURMD_NODENAME", ""))
    if not on_node.get("shard"):
        return None
    part = int(shards) * on_node.get("gpu", 0) / on_node["shard"] / len(visible.split(","))
    return part if 0 < part < 1 else None


def _fraction_of_mps(environ: Mapping[str, str], conf: str) -> float | None:
    """Return the part of a GPU that ``--gres=mps`` granted. Slurm passes it as a percentage of the GPU's threads."""
    percent = environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "")
    is_granted = "mps" in _gres_types(conf) and re.fullmatch("[1-9][0-9]?", percent)
    return int(percent) / 100 if is_granted else None


def _manages_gpus(conf: str) -> bool:
    return "gpu" in _gres_types(conf)


def _gres_types(conf: str) -> Sequence[str]:
    """Return the types of resources that Slurm grants: ``GresTypes`` in its configuration. Source: slurm.conf(5)."""
    types = re.search(r"(?im)^[ \t]*grestypes[ \t]*=([^#\r\n]*)", conf)
    return types.group(1).strip().lower().split(",") if types else ()


def included_files(conf: str) -> list[str]:
    return re.findall(r"(?im)^[ \t]*include[ \t]+([^\s#]+)", conf)


def _gres_of_node(conf: str, node: str) -> Mapping[str, int]:
    """Return how many generic resources a node has, keyed by their type. Read from ``Gres=gpu:a100:4,shard:8``."""
    default: Mapping[str, int] = {}
    for line in conf.replace("\\\n", " ").splitlines():
        words = [word.partition("=") for word in line.split("#")[0].split()]
        fields = {name.lower(): value for name, _, value in words}
        patterns = _entries(fields.get("nodename", ""))
        gres = _counts(fields.get("gres", ""))
        if patterns == ["DEFAULT"]:
            default = gres or default
        elif node and any(_is_node(node, pattern) for pattern in patterns):
            return gres or default
    return {}


def _counts(gres: str) -> Mapping[str, int]:
    counts: dict[str, int] = {}
    for entry in _entries(gres):
        # An entry is type:model:count(sockets), as gpu:a100:4(S:0-1).
        parts = entry.partition("(")[0].split(":")
        if len(parts) > 1 and re.fullmatch("[0-9]{1,6}", parts[-1]):
            counts[parts[0]] = counts.get(parts[0], 0) + int(parts[-1])
    return counts


def _entries(text: str) -> list[str]:
    # Commas separate the entries, except inside brackets.
    return re.findall(r"(?:[^,\[(]|\[[^\]]*\]?|\([^)]*\)?)+", text)


def _is_node(node: str, pattern: str) -> bool:
    """True if Slurm's pattern matches the node. Patterns look like ``gpu[01-08,12]`` and ``rack[1-2]n[1-4]``."""
    parts = re.split(r"\[([0-9,-]*)\]", pattern)
    found = re.fullmatch("([0-9]{1,9})".join(map(re.escape, parts[::2])), node)
    return found is not None and all(map(_is_in, found.groups(), parts[1::2]))


def _is_in(number: str, numbers: str) -> bool:
    spans = (re.fullmatch("([0-9]{1,9})(?:-([0-9]{1,9}))?", part) for part in numbers.split(","))
    return any(int(span.group(1)) <= int(number) <= int(span.group(2) or span.group(1)) for span in spans if span)
