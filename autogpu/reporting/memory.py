"""Sentences about how a framework allocates memory, and about the memory that recent runs of a script used."""

from __future__ import annotations

from typing import Sequence

from autogpu.lease.model import MAX_SCRIPT
from autogpu.text import printable, size, whole_gib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.history import KnownNeed
    from autogpu.selection.model import LastRuns


def memory_in_words(
    limits_mib: Sequence[tuple[float, ...]], fraction: float, *, grows: bool, by_script: bool = False
) -> str:
    """Return how a framework allocates memory, for example ``limited to 4096 MiB, allocated as needed``.

    Args:
        limits_mib: For each GPU, the limits of its logical GPUs; ``()`` if the GPU has no limit.
        fraction: The fraction of each GPU to which the script limits the framework; 0 for no such limit.
        grows: True if the framework allocates as needed; False if it allocates its whole limit when it starts.
        by_script: True if the script set the limits, and not the policy.
    """
    when = ", allocated as needed" if grows else ", allocated at once"
    if fraction:
        return f"limited by the script to {fraction:.0%} of each GPU" + when
    if any(limits_mib):
        limited = "limited by the script" if by_script else "limited"
        each = [f"{limited} to {_limits_of_gpu(limits)}" if limits else "not limited" for limits in limits_mib]
        if len(set(each)) > 1:
            return f"{limited} on {len(list(filter(None, limits_mib)))} of {len(each)} GPUs, {_least(limits_mib)}{when}"
        return f"{each[0]}{' on each' if len(each) > 1 else ''}{when}"
    return when[2:]


def _least(limits_mib: Sequence[tuple[float, ...]]) -> str:
    return f"to {min(sum(limits) for limits in limits_mib if limits):.0f} MiB or more"


def not_enforced(setting: str) -> str:
    """Return a note, to append to a limit, on the ``setting`` that makes the framework ignore the limit."""
    return f" (not enforced by {setting})" if setting else ""


def _limits_of_gpu(limits_mib: Sequence[float]) -> str:
    return " + ".join(f"{limit:.0f}" for limit in limits_mib) + " MiB" + " (logical GPUs)" * (len(limits_mib) > 1)


def took(runs: LastRuns) -> str:
    """Return how much memory the last runs of a script used or needed."""
    script = printable(runs.script, MAX_SCRIPT)
    if runs.has_failed:
        return f"{script} needed {size(runs.bytes)} in all when it ran out of memory"
    return f"{script} used {size(runs.bytes)} in its last runs"


def suggested_need(need: KnownNeed) -> str:
    """Return the setting that would let other jobs share the GPU with this one."""
    setting = f"AUTOGPU_NEED={whole_gib(need.bytes)}GiB"
    return f"{setting} (enough for the last {need.runs} runs) would let other jobs share this GPU"
