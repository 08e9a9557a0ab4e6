"""The script's own settings for its GPUs and the assignment, merged: what it set holds, what it left unset is filled.

Pure.
"""

from __future__ import annotations

from autogpu.frameworks.tensorflow.logical import limits_of_caps, with_named, within_ceilings
from autogpu.frameworks.tensorflow.settings import DevicePlacement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, Sequence

    from autogpu.frameworks.base import Assignment
    from autogpu.frameworks.tensorflow.settings import UserSettings


def merge_settings(
    settings: UserSettings,
    assignment: Assignment,
    allowed: Sequence[int],
    first: DevicePlacement | None = None,
    topology_fixed: bool = False,
    gpu_count: int = 0,
) -> DevicePlacement:
    """What a context or session gets.

    Args:
        settings: The script's own.
        assignment: What fills in where there are none.
        allowed: The ordinals that the process may use where the script names none.
        gpu_count: How many GPUs TensorFlow sees: it would have a logical GPU for each.
        first: What TensorFlow has made already. It never maps a logical GPU of a process to two GPUs (``GPU:0 is being
            mapped to multiple devices``) and gives a GPU one allocator, so the first placement stands on either.
        topology_fixed: Whether this TensorFlow can't add a GPU later to those that it has made.
    """
    ordinals = _ordinals(settings, allowed, first, topology_fixed)
    is_split = first is not None and len(first.logical) != len(first.ordinals)
    if settings.fraction and not (is_split and first is not None and _differ(ordinals, first.logical)):
        growth = _growth(settings, assignment, ordinals, {})
        placement = DevicePlacement(ordinals, growth=growth, fraction=settings.fraction, by_script=True)
    else:
        own = _script_limits(settings, ordinals, first)
        limits, by_script = _limits(own, assignment, ordinals, first), bool(own)
        growth = _growth(settings, assignment, ordinals, limits)
        placement = DevicePlacement(ordinals, limits, growth, by_script=by_script)
    placement = with_named(placement, settings, assignment, gpu_count, first)
    return within_ceilings(placement, assignment)


def _ordinals(
    settings: UserSettings, allowed: Sequence[int], first: DevicePlacement | None, topology_fixed: bool
) -> tuple[int, ...]:
    wanted = tuple(allowed if settings.visible is None else settings.visible)
    made = first.ordinals if first else ()
    # Plain TensorFlow counts 0, 1, 2 from its first context on, so a script that names those, or none, worked. One that
    # names others after that raises without us as well, and gets TensorFlow's own error.
    is_plain_order = settings.visible is None or wanted == tuple(range(len(wanted)))
    if made and is_plain_order:
        if topology_fixed or not set(made) <= set(wanted):
            wanted = made[: len(wanted)]
        elif _differ(wanted, made):
            wanted = made + tuple(ordinal for ordinal in wanted if ordinal not in made)
    return wanted if settings.max_count is None else wanted[: settings.max_count]


def _differ(one: Sequence[int], other: Sequence[int]) -> bool:
    return any(a != b for a, b in zip(one, other))


def _script_limits(
    settings: UserSettings, ordinals: Sequence[int], first: DevicePlacement | None
) -> dict[int, tuple[float, ...]]:
    """By ordinal, what the script itself limits of the GPUs that it gets."""
    limits = {ordinal: settings.limits[ordinal] for ordinal in ordinals if ordinal in settings.limits}
    if limits or len(settings.limits) != 1 or settings.visible is not None:
        return limits
    # A limit on one GPU, mostly gpus[0], is meant for the GPU that the script gets. Where the script chose its GPUs
    # itself it may have meant one of them.
    (only,) = settings.limits.values()
    unmade = [ordinal for ordinal in ordinals if first is None or ordinal not in first.ordinals]
    return {unmade[0]: only} if unmade else {}


def _limits(
    own: Mapping[int, tuple[float, ...]],
    assignment: Assignment,
    ordinals: Sequence[int],
    first: DevicePlacement | None,
) -> Mapping[int, tuple[float, ...]]:
    """By ordinal: the script's own limit, else what TensorFlow has there already, else the policy's."""
    limits = {}
    for ordinal in ordinals:
        made = first is not None and ordinal in first.ordinals
        filled = own.get(ordinal)
        if filled is None:
            filled = first.limits.get(ordinal, ()) if first and made else limits_of_caps(assignment, ordinal)
        if filled:
            limits[ordinal] = filled
    return limits


def _growth(
    settings: UserSettings,
    assignment: Assignment,
    ordinals: Sequence[int],
    limits: Mapping[int, tuple[float, ...]],
) -> bool | None:
    is_limited = bool(settings.limits) and all(ordinal in limits for ordinal in ordinals)
    # A limit on a GPU that the script did not choose in the end does not concern the others.
    in_force = sum(ordinal in settings.limits for ordinal in ordinals)
    if not in_force and settings.visible is None:
        in_force = len(settings.limits)
    # Beside the policy's own limits growth is for the policy to say.
    is_policys = bool(assignment.caps) and in_force < len(ordinals)
    if settings.limits_exclude_growth and is_limited and not is_policys:
        return None
    growth = user_growth(settings.growths, ordinals)
    return assignment.growth if growth is None else growth


def user_growth(growths: Mapping[int, bool], ordinals: Sequence[int]) -> bool | None:
    """What the script's settings mean for ``ordinals``; ``None`` where there are none, or they contradict each other.

    What is set for ``gpus[0]`` alone is meant for the GPU that the script gets, and for all of them: TensorFlow
    refuses to run with two GPUs that differ.
    """
    values = {growths[ordinal] for ordinal in ordinals if ordinal in growths} or set(growths.values())
    return values.pop() if len(values) == 1 else None
