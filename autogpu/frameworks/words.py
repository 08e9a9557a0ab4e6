"""How a framework allocates, in the words of the line that a process prints."""

from __future__ import annotations

from autogpu.reporting.text import MIB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Sequence


def limits_in_words(limits_mb: Sequence[tuple[float, ...]]) -> str:
    """Given those of the logical GPUs of each GPU."""
    each = [" + ".join(f"{limit:.0f}" for limit in limits) + " MiB" if limits else "none" for limits in limits_mb]
    if len(set(each)) > 1:
        return ", in this order, to " + ", ".join(each)
    return f" to {each[0]}" + (" on each" if len(each) > 1 else "")


def memory_in_words(caps: Sequence[int | None], fraction: float, *, grows: bool) -> str:
    """What a framework without logical GPUs allocates.

    Args:
        caps: Of the policy, for each GPU, in bytes; ``None`` for one without.
        fraction: Of each GPU, set by the script; 0 if it set none.
        grows: Whether it allocates as needed; else as much as it may have, at once.
    """
    when = ", allocated as needed" if grows else ", allocated at once"
    if fraction:
        return f"limited by the script to {fraction:.0%} of each GPU" + when
    if any(size is not None for size in caps):
        return "limited" + limits_in_words([() if size is None else (size / MIB,) for size in caps]) + when
    return when[2:]
