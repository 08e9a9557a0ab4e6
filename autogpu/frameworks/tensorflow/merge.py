"""The script's own settings for its GPUs and the assignment, merged: what it set holds, what it left unset is filled.

A script that names a GPU for which the process has none gets one more logical GPU on one that it has. Pure.
"""

from __future__ import annotations

from typing import Mapping, Sequence, Tuple

from autogpu.frameworks.base import Assignment
from autogpu.frameworks.tensorflow.settings import DevicePlacement, UserSettings
from autogpu.frozen import replace
from autogpu.reporting.text import MIB

Limits = Mapping[int, Tuple[float, ...]]


# The least with which TensorFlow can start a logical GPU: less than 1 MB is none to it.
_SMALLEST_MIB = 1.0

# More memory than any GPU has, for one whose memory is unknown: TensorFlow then takes what it can get.
_UNKNOWN_BYTES = MIB << 20


def merge_settings(
    settings: UserSettings,
    assignment: Assignment,
    allowed: Sequence[int],
    first: DevicePlacement | None = None,
    topology_fixed: bool = False,
    gpu_count: int = 0,
) -> DevicePlacement:
    """Merge the settings of a script and the assignment for one context or session.

    Args:
        allowed: The ordinals that the process may use where the script names none.
        gpu_count: How many GPUs TensorFlow sees: it would have a logical GPU for each.
        first: What TensorFlow has made already. It never maps a logical GPU of a process to two GPUs (``GPU:0 is being
            mapped to multiple devices``) and gives a GPU one allocator, so the first placement stands on either.
        topology_fixed: This TensorFlow can't add a GPU later to those that it has made.
    """
    ordinals = _ordinals(settings, allowed, first, topology_fixed)
    is_split = first is not None and len(first.logical) != len(first.ordinals)
    if settings.fraction and not (is_split and first is not None and _differ(ordinals, first.logical)):
        growth = _growth(settings, assignment, ordinals, {})
        placement = DevicePlacement(ordinals, growth=growth, fraction=settings.fraction, by_script=True)
    else:
        own = _script_limits(settings, ordinals, first)
        limits = _limits(own, assignment, ordinals, first)
        growth = _growth(settings, assignment, ordinals, limits)
        placement = DevicePlacement(ordinals, limits, growth, by_script=bool(own))
    # Logical GPUs that exist have their memory already; in a later session, names that are missing are placed softly.
    if first is None and placement.ordinals:
        placement = _with_named(placement, settings, assignment, gpu_count)
    return _within_ceilings(placement, assignment)


def _ordinals(
    settings: UserSettings, allowed: Sequence[int], first: DevicePlacement | None, topology_fixed: bool
) -> tuple[int, ...]:
    wanted = tuple(allowed if settings.visible is None else settings.visible)
    # Plain TensorFlow counts 0, 1, 2 from its first context on, so a script that names those, or none, worked. One that
    # names others after that raises without us as well, and gets TensorFlow's own error.
    is_plain_order = settings.visible is None or wanted == tuple(range(len(wanted)))
    if first is not None and first.ordinals and is_plain_order:
        wanted = _after(first.ordinals, wanted, topology_fixed)
    return wanted[: settings.max_count]


def _after(made: tuple[int, ...], wanted: tuple[int, ...], topology_fixed: bool) -> tuple[int, ...]:
    if topology_fixed or not set(made) <= set(wanted):
        return made[: len(wanted)]
    return made + tuple(ordinal for ordinal in wanted if ordinal not in made) if _differ(wanted, made) else wanted


def _differ(one: Sequence[int], other: Sequence[int]) -> bool:
    return any(a != b for a, b in zip(one, other))


def _script_limits(settings: UserSettings, ordinals: Sequence[int], first: DevicePlacement | None) -> Limits:
    """By ordinal, what the script itself limits of the GPUs that it gets."""
    limits = {ordinal: settings.limits[ordinal] for ordinal in ordinals if ordinal in settings.limits}
    if limits or len(settings.limits) != 1 or settings.visible is not None:
        return limits
    # A limit on one GPU, mostly gpus[0], is meant for the GPU that the script gets. Where the script chose its GPUs
    # itself it may have meant one of them.
    (only,) = settings.limits.values()
    unmade = [ordinal for ordinal in ordinals if first is None or ordinal not in first.ordinals]
    return {unmade[0]: only} if unmade else {}


def _limits(own: Limits, assignment: Assignment, ordinals: Sequence[int], first: DevicePlacement | None) -> Limits:
    """By ordinal: the script's own limit, else what TensorFlow has there already, else the policy's."""
    limits: dict[int, tuple[float, ...]] = {}
    for ordinal in ordinals:
        cap = assignment.caps.get(ordinal)
        if ordinal in own:
            limits[ordinal] = own[ordinal]
        elif first is not None and ordinal in first.ordinals:
            limits[ordinal] = first.limits.get(ordinal, ())
        elif cap is not None:
            limits[ordinal] = (_whole_mib(cap),) * assignment.logical_gpus
    return {ordinal: parts for ordinal, parts in limits.items() if parts}


def _growth(settings: UserSettings, assignment: Assignment, ordinals: Sequence[int], limits: Limits) -> bool | None:
    if settings.limits_exclude_growth and settings.limits and all(ordinal in limits for ordinal in ordinals):
        # A limit on a GPU that the script did not choose in the end does not concern the others.
        in_force = sum(ordinal in settings.limits for ordinal in ordinals)
        if not in_force and settings.visible is None:
            in_force = len(settings.limits)
        # Beside the policy's own limits growth is for the policy to say.
        if not assignment.caps or in_force >= len(ordinals):
            return None
    growth = user_growth(settings.growths, ordinals)
    return assignment.growth if growth is None else growth


def user_growth(growths: Mapping[int, bool], ordinals: Sequence[int]) -> bool | None:
    """The script's growth for ``ordinals``; ``None`` where it is not set, or contradicts itself.

    What is set for ``gpus[0]`` alone is meant for the GPU that the script gets, and for all of them: TensorFlow
    refuses to run with two GPUs that differ.
    """
    values = {growths[ordinal] for ordinal in ordinals if ordinal in growths} or set(growths.values())
    return values.pop() if len(values) == 1 else None


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


def _with_named(
    placement: DevicePlacement, settings: UserSettings, assignment: Assignment, gpu_count: int
) -> DevicePlacement:
    """Add a logical GPU for each one that the script names and would have without autogpu.

    Different names are on different GPUs, as far as there are. What lies between them exists as well.
    """
    wanted = named_logical(settings, gpu_count)
    if wanted <= len(placement.logical):
        return placement
    named = sorted(number for number in settings.named if number < settings.plain_count(gpu_count))
    used = range(wanted) if settings.places_hard else {*named, *([0] if settings.leaves_unplaced else [])}
    limits, start = {}, 0
    for ordinal, count in zip(placement.ordinals, _logical_counts(placement, named, wanted)):
        is_used = [number in used for number in range(start, start + count)]
        limits[ordinal] = _parts(placement, assignment, ordinal, is_used)
        start += count
    is_split_only = bool(placement.growth) and not placement.limits and not placement.fraction
    return replace(placement, limits=limits, fraction=0.0, is_split_only=is_split_only)


def _logical_counts(placement: DevicePlacement, named: Sequence[int], wanted: int) -> list[int]:
    """For each GPU, how many logical GPUs it has so that there are as many as wanted."""
    gpus = len(placement.ordinals)
    if len(placement.logical) == gpus and len(named) >= gpus:
        # The names in order, as evenly as it goes.
        starts = [0, *(named[place * len(named) // gpus] for place in range(1, gpus)), wanted]
        return [end - start for start, end in zip(starts, starts[1:])]
    counts = [len(placement.limits.get(ordinal, (0.0,))) for ordinal in placement.ordinals]
    counts[-1] += wanted - len(placement.logical)
    return counts


def _parts(placement: DevicePlacement, assignment: Assignment, ordinal: int, used: Sequence[bool]) -> tuple[float, ...]:
    """MB of each logical GPU on a GPU: those that are used divide a limit, and all of them what has none."""
    given, count = placement.limits.get(ordinal, ()), len(used)
    if placement.fraction:
        return (_fraction_mib(placement, assignment, ordinal),) * count
    if given and placement.by_script:
        # The script's own limit for each logical GPU holds for the added ones, and is claimed as often.
        return (*given, *[given[-1]] * (count - len(given)))
    size = sum(given) or _whole_mib(assignment.usable.get(ordinal, _UNKNOWN_BYTES))
    if placement.growth and not given:
        return (size,) * count  # each may grow to all that there is
    # The parts into which the policy itself splits a limit are alike.
    dividing = used if any(used) and len(given) == 1 else [True] * count
    rest = size - _SMALLEST_MIB * dividing.count(False)
    part = max(float(rest // dividing.count(True)), _SMALLEST_MIB)
    return tuple(part if takes_part else _SMALLEST_MIB for takes_part in dividing)


def _within_ceilings(placement: DevicePlacement, assignment: Assignment) -> DevicePlacement:
    """Cut the limits, also where they are the script's, to what a GPU that is shared has for them."""
    has_size = placement.limits or placement.fraction
    if not has_size or not any(ordinal in assignment.ceilings for ordinal in placement.ordinals):
        return placement
    limits = dict(placement.limits)
    for ordinal in placement.ordinals:
        if placement.fraction:
            limits[ordinal] = (_fraction_mib(placement, assignment, ordinal),)
        parts = limits.get(ordinal, ())
        ceiling = assignment.ceilings.get(ordinal, _UNKNOWN_BYTES) // MIB
        if sum(parts) > ceiling:
            limits[ordinal] = tuple(float(max(int(ceiling * part / sum(parts)), 1)) for part in parts)
    return replace(placement, limits=limits, fraction=0.0)


def _fraction_mib(placement: DevicePlacement, assignment: Assignment, ordinal: int) -> float:
    return _whole_mib(placement.fraction * assignment.totals.get(ordinal, _UNKNOWN_BYTES))


def _whole_mib(size_bytes: float) -> float:
    # A ConfigProto holds MB with 24 bits, and a cap is not to be rounded up.
    return float(max(int(size_bytes) // MIB, 1))


def script_limits(settings: UserSettings) -> Mapping[int, int]:
    """By CUDA ordinal, the bytes that the script lets all logical GPUs there take together."""
    return {ordinal: int(sum(parts) * MIB) for ordinal, parts in settings.limits.items()}
