"""Sentences about engines: what Slurm, Ray and others granted, and what they did not."""

from __future__ import annotations

from typing import Sequence

from autogpu.devices.model import Device
from autogpu.reporting.gpus import labels
from autogpu.selection.grants import Denial, Grant, LocalRank
from autogpu.text import counted, listed, printable


def denial(grant: Grant) -> tuple[str, str]:
    """Return why an engine's process has no GPU, and how to have one."""
    granted = counted(grant.unnamed or 0, "GPU")
    what, remedy = {
        Denial.COORDINATOR: (
            f"TF_CONFIG makes this process a {grant.role} beside parameter servers, which computes nothing on a GPU",
            "to have one: AUTOGPU_COUNT=1",
        ),
        Denial.RAY_ASSIGNED_NONE: ("Ray assigned no GPU to this task", "to have one: num_gpus=1"),
        Denial.SLURM_GRANTED_NONE: ("Slurm granted no GPU here", "to have one: srun --gres=gpu:1"),
        Denial.UNKNOWN_WHICH: (
            f"{grant.engine} granted {granted} of {grant.on_host} here and does not say which",
            "leave --gpu-bind=none out",
        ),
        None: ("", ""),
    }[grant.denial]
    return what, remedy


def granted_fraction(grant: Grant) -> str:
    """Return which part of each GPU was granted, to follow the GPUs; ``""`` if the grant is for whole GPUs."""
    return f", {100 * grant.fraction:.0f} % of it granted by {grant.engine}" if grant.fraction else ""


def first_rank_missing(rank: LocalRank, claimed: Sequence[Device]) -> str:
    """Return the line for a rank that has claimed the GPUs of its job, if rank 0, which speaks for all, is missing."""
    what = f"this is local rank {rank.rank} of {rank.size} ({rank.launcher}), and no rank 0 is seen here"
    return f"{what}; this process holds {labels(claimed)} for all of them"


def granted_gpus(grant: Grant, visible: str | None) -> str:
    """Return the granted GPUs as the engine names them: ``50 % of GPU 2``."""
    if grant.is_none:
        return "no GPU"
    entries = [printable(entry.strip(), 64) for entry in (visible or "?").split(",")]
    gpus = listed([entry if entry.startswith(("GPU-", "MIG-")) else f"GPU {entry}" for entry in entries])
    return f"{100 * grant.fraction:.0f} % of {gpus}" if grant.fraction else gpus


def kept_gpus(grant: Grant, now: str, before: str) -> str:
    """Return the line for a worker process of Ray that keeps the GPUs of an earlier task.

    Args:
        now: The GPUs that are granted now, as :func:`granted_gpus` names them.
        before: Those that the process keeps.
    """
    return (
        f"{grant.engine} gives {now} to {grant.task or 'this task'}, whose worker process keeps {before} "
        "from an earlier one; to have a process for each task: max_calls=1"
    )
