"""Sentences about memory: how a framework allocates it, and what the last runs took."""

from __future__ import annotations

from typing import Sequence

from autogpu.text import size, whole_gib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.history import KnownNeed


def memory_in_words(
    limits_mib: Sequence[tuple[float, ...]], fraction: float, *, grows: bool, by_script: bool = False
) -> str:
    """Return how a framework allocates, under the limits of each GPU's logical GPUs or a script's fraction of each GPU.

    If its memory does not grow, it allocates as much as it may have at once.
    """
    when = ", allocated as needed" if grows else ", allocated at once"
    if fraction:
        return f"limited by the script to {fraction:.0%} of each GPU" + when
    if any(limits_mib):
        each = [" + ".join(f"{limit:.0f}" for limit in limits) + " MiB" if limits else "none" for limits in limits_mib]
        limited = "limited by the script" if by_script else "limited"
        if len(set(each)) > 1:
            return f"{limited}, in this order, to {', '.join(each)}{when}"
        return f"{limited} to {each[0]}{' on each' if len(each) > 1 else ''}{when}"
    return when[2:]


def last_runs(need: KnownNeed) -> str:
    """Return the end of a line that tells what the last runs took, and what to state so that others share the GPU."""
    took = f"its last {need.runs} runs took at most {size(need.took_bytes)}"
    return f"{took}: AUTOGPU_NEED={whole_gib(need.need_bytes)}GiB lets others share this GPU"
