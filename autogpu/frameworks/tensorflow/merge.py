"""The script's own settings for its GPUs and the assignment, merged: what it set holds, what it left unset is filled.

A script that names a GPU for which the process has none gets one more logical GPU on one that it has. Pure.
"""

from __future__ import annotations

from typing import Mapping, Sequence

from autogpu.frameworks.base import Assignment
from autogpu.frameworks.tensorflow.settings import NOTHING_MADE, DevicePlacement, Limits, UserSettings
from autogpu.frozen import replace
from autogpu.reporting.text import MIB

# The least with which TensorFlow can start a logical GPU: less than 1 MB is none to it.
_SMALLEST_MIB = 1.0

# More memory than any GPU has, for one whose memory is unknown: TensorFlow then takes what it can get.
_UNKNOWN_BYTES = MIB << 20


def merge_settings(
    settings: UserSettings,
    assignment: Assignment,
    allowed: Sequence[int],
    first: DevicePlacement = NOTHING_MADE,
    topology_fixed: bool = False,
) -> DevicePlacement:
    """Merge the settings of a script and the assignment for one context or session.

    Args:
        allowed: The ordinals that the process may use where the script names none.
        first: What TensorFlow has made already. It never maps a logical GPU of a process to two GPUs (``GPU:0 is being
            mapped to multiple devices``) and gives a GPU one allocator, so the first placement stands on either.
        topology_fixed: This TensorFlow can't add a GPU later to those that it has made.
    """
    ordinals = _ordinals(settings, allowed, first.ordinals, topology_fixed)
    is_split = len(first.logical) != len(first.ordinals)
    if settings.fraction and not (is_split and any(one != made for one, made in zip(ordinals, first.logical))):
        growth = _growth(settings, assignment, ordinals, {})
        placement = DevicePlacement(ordinals, growth=growth, fraction=settings.fraction, by_script=True)
    else:
        own = _script_limits(settings, ordinals, first.ordinals)
        limits = _limits(own, assignment, ordinals, first)
        growth = _growth(settings, assignment, ordinals, limits)
        placement = DevicePlacement(ordinals, limits, growth, by_script=bool(own))
    # Logical GPUs that exist have their memory already; in a later session, names that are missing are placed softly.
    if placement.ordinals and not first.ordinals:
        placement = _with_named(placement, settings, assignment)
    return _within_ceilings(placement, assignment)


def _ordinals(
    settings: UserSettings, allowed: Sequence[int], made: tuple[int, ...], topology_fixed: bool
) -> tuple[int, ...]:
    wanted = tuple(dict.fromkeys(allowed if settings.visible is None else settings.visible))
    # Plain TensorFlow counts 0, 1, 2 from its first context on, so a script that names those, or none, worked. One that
    # names others after that raises without us as well, and gets TensorFlow's own error.
    is_plain_order = settings.visible is None or wanted == tuple(range(len(wanted)))
    if made and is_plain_order:
        can_add = set(made) <= set(wanted) and not topology_fixed
        wanted = made + tuple(o for o in wanted if o not in made) if can_add else made[: len(wanted)]
    return wanted[: settings.max_count]


def _script_limits(settings: UserSettings, ordinals: Sequence[int], made: Sequence[int]) -> Limits:
    """By ordinal, what the script itself limits of the GPUs that it gets."""
    limits = {ordinal: settings.limits[ordinal] for ordinal in ordinals if ordinal in settings.limits}
    if limits or len(settings.limits) != 1 or settings.visible is not None:
        return limits
    # A limit on one GPU, mostly gpus[0], is meant for the GPU that the script gets. Where the script chose its GPUs
    # itself it may have meant one of them.
    (only,) = settings.limits.values()
    unmade = [ordinal for ordinal in ordinals if ordinal not in made]
    return dict.fromkeys(unmade[:1], only)


def _limits(own: Limits, assignment: Assignment, ordinals: Sequence[int], first: DevicePlacement) -> Limits:
    """By ordinal: the script's own limit, else what TensorFlow has there already, else the policy's."""
    policys = {ordinal: (_whole_mib(cap),) * assignment.logical_gpus for ordinal, cap in assignment.caps.items()}
    made = {ordinal: first.limits.get(ordinal, ()) for ordinal in first.ordinals}
    found = {**policys, **made, **own}
    return {ordinal: found[ordinal] for ordinal in ordinals if found.get(ordinal)}


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


def _with_named(placement: DevicePlacement, settings: UserSettings, assignment: Assignment) -> DevicePlacement:
    """Add a logical GPU for each one that the script names and would have without autogpu.

    Different names are on different GPUs, as far as there are. What lies between them exists as well.
    """
    wanted = settings.named_logical
    if wanted <= len(placement.logical):
        return placement
    named = sorted(number for number in settings.named if number < len(settings.plain_logical))
    used = range(wanted) if settings.places_hard else {*named, *([0] if settings.leaves_unplaced else [])}
    limits = {
        ordinal: _parts(placement, assignment, ordinal, [number in used for number in numbers])
        for ordinal, numbers in zip(placement.ordinals, _numbers(placement, named, wanted))
    }
    is_split_only = bool(placement.growth) and not placement.limits and not placement.fraction
    return replace(placement, limits=limits, fraction=0.0, is_split_only=is_split_only)


def _numbers(placement: DevicePlacement, named: Sequence[int], wanted: int) -> list[range]:
    """For each GPU, the numbers of its logical GPUs, so that there are as many as wanted."""
    gpus = len(placement.ordinals)
    if len(placement.logical) == gpus and len(named) >= gpus:
        # The names in order, as evenly as it goes.
        starts = [named[place * len(named) // gpus] for place in range(1, gpus)]
    else:
        starts = [placement.logical.index(ordinal) for ordinal in placement.ordinals[1:]]
    return [range(start, end) for start, end in zip([0, *starts], [*starts, wanted])]


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
    if assignment.ceilings.keys().isdisjoint(placement.ordinals):
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
