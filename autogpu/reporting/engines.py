"""Messages about the GPUs that an engine, such as Slurm or Ray, granted to a process or did not grant."""

from __future__ import annotations

from typing import Sequence

from autogpu.devices.model import Device
from autogpu.engines.model import Denial, Grant, LocalRank
from autogpu.reporting.gpus import labels
from autogpu.text import counted, listed, printable


def denial(grant: Grant) -> tuple[str, str]:
    """Return why a process of Slurm, Ray or ``TF_CONFIG`` has no GPU, and what its user can change to get one."""
    what, remedy = {
        Denial.COORDINATOR: (
            f"TF_CONFIG: the role {grant.role} needs no GPU with parameter servers",
            "to use a GPU: AUTOGPU_COUNT=1",
        ),
        Denial.RAY_ASSIGNED_NONE: ("Ray granted no GPU to this task", "to get a GPU: @ray.remote(num_gpus=1)"),
        Denial.SLURM_GRANTED_NONE: ("Slurm granted no GPU here", "to get a GPU: srun --gres=gpu:1"),
        Denial.UNKNOWN_WHICH: (
            f"{grant.engine} granted {grant.unnamed or 0} of {counted(grant.on_host, 'GPU')} here, "
            "but autogpu can't determine which",
            "leave --gpu-bind=none out",
        ),
        None: ("", ""),
    }[grant.denial]
    return what, remedy


def fraction_of_gpus(grant: Grant, count: int) -> str:
    """Return the fraction of ``count`` GPUs that an engine granted, to append to their names; ``""`` for whole GPUs."""
    return f", {100 * grant.fraction:.0f} % of {'the' if count == 1 else 'each'} GPU" if grant.fraction else ""


def granted_fraction(grant: Grant, count: int) -> str:
    """Return what :func:`fraction_of_gpus` returns, and the engine that granted the fraction; ``""`` for whole GPUs."""
    return f"{fraction_of_gpus(grant, count)} granted by {grant.engine}" if grant.fraction else ""


def first_rank_missing(rank: LocalRank, claimed: Sequence[Device]) -> str:
    """Return the message of a process that holds GPUs for all ranks of its job because autogpu found no rank 0."""
    who = f"local rank {rank.rank} of {rank.size} ({rank.launcher})"
    return f"{who} holds {labels(claimed)} for all ranks: no rank 0 was found on this host"


def granted_gpus(grant: Grant, visible: str | None) -> str:
    """Return the GPUs that an engine granted, as the engine names them: ``50 % of GPU 2``."""
    if grant.is_none:
        return "no GPU"
    entries = [printable(entry.strip(), 64) for entry in (visible or "?").split(",")]
    gpus = listed([entry if entry.startswith(("GPU-", "MIG-")) else f"GPU {entry}" for entry in entries])
    return f"{100 * grant.fraction:.0f} % of {gpus}" if grant.fraction else gpus


def kept_gpus(grant: Grant, now: str, before: str) -> str:
    """Return the message of a Ray worker process that keeps the GPUs of an earlier task.

    Args:
        now: The GPUs that Ray grants to the present task, as :func:`granted_gpus` names them.
        before: The GPUs of the earlier task, which the process keeps.
    """
    return (
        f"{grant.engine} granted {now} to {grant.task or 'this task'}, but its process keeps {before} "
        "of an earlier task; to avoid that: @ray.remote(max_calls=1)"
    )
