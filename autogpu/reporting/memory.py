"""Sentences about memory: how a framework allocates it, what recent runs used, what a process claims and may use."""

from __future__ import annotations

from typing import Iterator, Sequence

from autogpu.lease.model import MAX_SCRIPT
from autogpu.text import MIB, printable, size, whole_gib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.history import KnownNeed
    from autogpu.selection.decision import Decision
    from autogpu.selection.model import Candidate, LastRuns, SelectionRequest

# Lines print GiB with one decimal: a smaller reservation would make no visible difference between the free memory and
# the cap.
_LEAST_RESERVED_BYTES = 100 * MIB


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


# The claim of a process, and its cap beside other jobs


def cap_notes(decision: Decision, known: KnownNeed | None = None) -> Iterator[str]:
    """Yield how much memory a best-effort job may use, and how to reserve memory, such as the ``known`` need."""
    if decision.is_capped_by_others and decision.request is not None:
        yield f"memory limited by other jobs{_lowest_cap(decision)}"
        if not decision.request.demand.is_whole:
            yield f"no memory is reserved: less than {demanded(decision.request)} was left"
        elif not (decision.request.names_cards or decision.is_fixed):
            need = whole_gib(known.bytes) if known else _example_gib(decision)
            yield f"to reserve {need} GiB: AUTOGPU_NEED={need}GiB"


def _example_gib(decision: Decision) -> int:
    """Return the most GiB that the last runs used on one of the GPUs; 6, as an example, if there were no runs."""
    return max((whole_gib(each.last_runs.bytes) for each in decision.taken if each.last_runs), default=6)


def _lowest_cap(decision: Decision) -> str:
    """Return the lowest cap of a best-effort job, and the GPU if it has several.

    Return ``""`` if there is no cap, or if other jobs have reserved almost none of the GPU's free memory.
    """
    shared = [each for each in decision.taken if each.device.uuid in decision.caps]
    lowest = min(shared, key=lambda each: decision.caps[each.device.uuid].bytes, default=None)
    if lowest is None or _reserved_bytes(lowest) < _LEAST_RESERVED_BYTES:
        return ""
    where = "" if len(decision.taken) == 1 else f" on GPU {lowest.device.label}"
    return f" to {size(decision.caps[lowest.device.uuid].bytes)}{where}"


def _reserved_bytes(candidate: Candidate) -> int:
    """Return the bytes of a GPU's free memory that other jobs have reserved; 0 if the readings are missing."""
    free = candidate.device.memory_free_bytes
    return 0 if free is None or candidate.free_bytes is None else free - candidate.free_bytes


def reserved(decision: Decision) -> Iterator[str]:
    """Yield the memory that a process has reserved for its stated need."""
    need_bytes = decision.request.policy.need_bytes if decision.request else None
    claims = decision.claims
    if need_bytes is None or not claims or not all(claims.values()):
        return
    # A job whose wait is over takes a GPU on which a desktop leaves too little memory.
    missing = max((-(each.left_bytes or 0) for each in decision.taken), default=0)
    if missing > 0:
        yield f"{size(need_bytes)} needed, but only {size(max(need_bytes - missing, 0))} left"
    else:
        yield f"{size(need_bytes)} reserved{' on each' if len(claims) > 1 else ''}"


def demanded(request: SelectionRequest) -> str:
    """Return the need or limit that a request states: ``6.0 GiB``, or ``60 % of its memory``."""
    demand = request.demand
    return f"{demand.percent:g} % of its memory" if demand.bytes is None else size(demand.bytes)
