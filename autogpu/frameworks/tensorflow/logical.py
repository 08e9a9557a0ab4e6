"""Into which logical GPUs the GPUs of a placement are split, and how much memory each of those may take. Pure.

A script that names a GPU for which the process has none gets one more logical GPU on one that it has.
"""

from __future__ import annotations

from autogpu.frozen import replace
from autogpu.reporting.text import MIB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, Sequence

    from autogpu.frameworks.base import Assignment
    from autogpu.frameworks.tensorflow.settings import DevicePlacement, UserSettings

# The least with which TensorFlow can start a logical GPU: less than 1 MB is none to it.
_SMALLEST_MIB = 1.0

# Where the driver does not tell how much memory a GPU has: more than any has. TensorFlow then takes what it can get.
_UNKNOWN_MIB = 1 << 20


def named_gpus(settings: UserSettings, gpu_count: int) -> int:
    """On how many different GPUs the logical GPUs that a script names would be without autogpu."""
    plain = settings.plain_logical(gpu_count)
    return len({plain[position] for position in settings.named if position < len(plain)})


def named_logical(settings: UserSettings, gpu_count: int) -> int:
    """How many logical GPUs there have to be for the names of a script to exist."""
    plain = settings.plain_count(gpu_count)
    if settings.places_hard:
        return plain
    return max((number + 1 for number in settings.named if number < plain), default=0)


def within_ceilings(placement: DevicePlacement, assignment: Assignment) -> DevicePlacement:
    """The placement with its limits cut to what a GPU that is shared has for them, also where they are the script's."""
    ceilings = {o: assignment.ceilings[o] // MIB for o in placement.ordinals if o in assignment.ceilings}
    if not ceilings or not (placement.limits or placement.fraction):
        return placement
    limits = dict(placement.limits)
    for ordinal in placement.ordinals:
        if placement.fraction:
            limits[ordinal] = (_fraction_mib(placement, assignment, ordinal),)
        parts = limits.get(ordinal, ())
        if ordinal in ceilings and sum(parts) > ceilings[ordinal]:
            limits[ordinal] = tuple(float(max(int(ceilings[ordinal] * part / sum(parts)), 1)) for part in parts)
    return replace(placement, limits=limits, fraction=0.0)


def with_named(
    placement: DevicePlacement,
    settings: UserSettings,
    assignment: Assignment,
    gpu_count: int,
    first: DevicePlacement | None,
) -> DevicePlacement:
    """The placement with a logical GPU for each one that the script names and would have without autogpu.

    Different names are on different GPUs, as far as there are. What lies between them exists as well.

    Args:
        gpu_count: How many GPUs TensorFlow sees.
        first: What it has made already.
    """
    named = sorted(number for number in settings.named if number < settings.plain_count(gpu_count))
    wanted = named_logical(settings, gpu_count)
    # What is there has its memory already: in a later session what it lacks is placed softly.
    if wanted <= len(placement.logical) or not placement.ordinals or first is not None:
        return placement
    ordinals = placement.ordinals
    counts = [len(placement.limits.get(ordinal, (0.0,))) for ordinal in ordinals]
    if len(placement.logical) == len(ordinals) and len(named) >= len(ordinals):
        starts = [0, *(group[0] for group in _groups(named, len(ordinals))[1:]), wanted]
        counts = [end - start for start, end in zip(starts, starts[1:])]
    else:
        counts[-1] += wanted - len(placement.logical)
    used = range(wanted) if settings.places_hard else {*named, *([0] if settings.leaves_unplaced else [])}
    numbers = iter(range(wanted))
    limits = {
        ordinal: _parts(placement, assignment, ordinal, [next(numbers) in used for _ in range(count)])
        for ordinal, count in zip(ordinals, counts)
    }
    is_split_only = bool(placement.growth) and not placement.limits and not placement.fraction
    return replace(placement, limits=limits, fraction=0.0, is_split_only=is_split_only)


def _groups(named: Sequence[int], count: int) -> list[Sequence[int]]:
    """In order, as evenly as it goes."""
    bounds = [place * len(named) // count for place in range(count + 1)]
    return [named[start:end] for start, end in zip(bounds, bounds[1:])]


def _parts(placement: DevicePlacement, assignment: Assignment, ordinal: int, used: Sequence[bool]) -> tuple[float, ...]:
    """MB of each logical GPU on a GPU: those that are used divide a limit, and all of them what has none."""
    given, count = placement.limits.get(ordinal, ()), len(used)
    if placement.fraction:
        return (_fraction_mib(placement, assignment, ordinal),) * count
    if given and placement.by_script:
        # What the script allows each is its own word, and claimed as often.
        return (*given, *[given[-1]] * (count - len(given)))
    size = sum(given) or _whole_mib(assignment.usable.get(ordinal, _UNKNOWN_MIB * MIB))
    if placement.growth and not given:
        return (size,) * count  # each may grow to all that there is
    # The parts into which the policy itself splits a limit are alike.
    dividing = used if any(used) and len(given) == 1 else [True] * count
    rest = size - _SMALLEST_MIB * dividing.count(False)
    part = max(float(rest // dividing.count(True)), _SMALLEST_MIB)
    return tuple(part if takes_part else _SMALLEST_MIB for takes_part in dividing)


def _fraction_mib(placement: DevicePlacement, assignment: Assignment, ordinal: int) -> float:
    return _whole_mib(placement.fraction * assignment.totals.get(ordinal, _UNKNOWN_MIB * MIB))


def _whole_mib(size_bytes: float) -> float:
    # A ConfigProto holds MB with 24 bits, and a cap is not to be rounded up.
    return float(max(int(size_bytes) // MIB, 1))


def limits_of_caps(assignment: Assignment, ordinal: int) -> tuple[float, ...]:
    """What the assignment itself caps: MB of each logical GPU; ``()`` where it caps nothing."""
    cap = assignment.caps.get(ordinal)
    return () if cap is None else (_whole_mib(cap),) * assignment.logical_gpus


def script_limits(settings: UserSettings) -> Mapping[int, int]:
    """By CUDA ordinal, the bytes that the script lets all logical GPUs there take together."""
    return {ordinal: int(sum(parts) * MIB) for ordinal, parts in settings.limits.items()}
