"""The lines of ``autogpu run --hold``: which GPUs it holds for a program, and which of them are shared."""

from __future__ import annotations

from typing import Iterator, Sequence

from autogpu.devices.model import Device
from autogpu.reporting.choice import forms_of_gpus, notes, reason
from autogpu.reporting.gpus import each_gpu, labels
from autogpu.reporting.memory import reserved
from autogpu.selection.decision import Decision
from autogpu.selection.model import Tier
from autogpu.text import first_fitting, with_notes


def held(decision: Decision, script: str, shared: Sequence[Device], *, is_explained: bool) -> list[str]:
    """Return the lines about the GPUs that ``autogpu run --hold`` holds for a program.

    Args:
        shared: The GPUs that ``--hold`` could not reserve for the program alone.
    """
    heads = [f"{gpus} for {script}: {reason(decision)}" for gpus in forms_of_gpus(decision.devices)]
    found = notes(decision, _not_held(shared, decision) if shared else reserved(decision))
    if is_explained:
        return [heads[0], *found, *each_gpu(decision, decision.devices)]
    return with_notes([first_fitting(heads) or heads[-1]], found)


def _not_held(shared: Sequence[Device], decision: Decision) -> Iterator[str]:
    """Yield which GPUs the program may have to share, and how to wait for free ones."""
    which = "" if len(shared) == len(decision.devices) else labels(shared) + " "
    yield f"{which}not reserved: other jobs may share {'it' if len(shared) == 1 else 'them'}"
    # With --busy wait a job takes a GPU with an idle lease as well, so the advice would not help.
    idle = {each.device.uuid for each in decision.ranking.candidates if each.tier is Tier.IDLE_LEASE}
    if not idle.issuperset(device.uuid for device in shared):
        yield "for a free GPU: --busy wait"
