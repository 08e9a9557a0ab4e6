"""The script's own settings for its GPUs and the assignment, merged: what it set holds, what it left unset is filled.

Pure.
"""

from __future__ import annotations

from types import MappingProxyType

from autogpu.frozen import frozen, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, Sequence

    from autogpu.frameworks.base import Assignment

MIB = 1 << 20

_NO_LIMITS: Mapping[int, tuple[float, ...]] = MappingProxyType({})


@frozen
class UserSettings:
    """What a script itself set for its GPUs, by CUDA ordinal.

    Attributes:
        visible: The GPUs that it named, in its order; ``None`` if it named none.
        max_count: How many it asked for, ``device_count["GPU"]``; ``None`` if it did not say.
        growths: Memory growth, for each GPU for which it was set.
        limits: MB of each logical GPU, for each GPU for which it was set.
        fraction: ``per_process_gpu_memory_fraction``; 0 if unset. TensorFlow takes that or limits.
        limits_exclude_growth: Whether its limits came through ``tf.config``, where growth can't be set beside one:
            there a limit means memory that is taken at once.
    """

    visible: tuple[int, ...] | None = None
    max_count: int | None = None
    growths: Mapping[int, bool] = MappingProxyType({})
    limits: Mapping[int, tuple[float, ...]] = _NO_LIMITS
    fraction: float = 0.0
    limits_exclude_growth: bool = False

    def over(self, other: UserSettings) -> UserSettings:
        """These settings, and those of ``other`` where there are none; a fraction can't stand beside limits."""
        has_size = bool(self.limits or self.fraction)
        return replace(
            self,
            visible=other.visible if self.visible is None else self.visible,
            max_count=other.max_count if self.max_count is None else self.max_count,
            growths=self.growths or other.growths,
            limits=self.limits if has_size else other.limits,
            fraction=self.fraction if has_size else other.fraction,
            limits_exclude_growth=self.limits_exclude_growth if has_size else other.limits_exclude_growth,
        )


@frozen
class DevicePlacement:
    """GPUs as TensorFlow is to see them: what fills a ConfigProto.

    Attributes:
        ordinals: CUDA ordinals in TensorFlow's order.
        limits: MB of each logical GPU; a GPU without an entry is one logical GPU without a limit.
        growth: ``None`` leaves it to TensorFlow.
        fraction: As in :class:`UserSettings`.
    """

    ordinals: tuple[int, ...] = ()
    limits: Mapping[int, tuple[float, ...]] = _NO_LIMITS
    growth: bool | None = None
    fraction: float = 0.0

    @property
    def logical(self) -> tuple[int, ...]:
        """For each of TensorFlow's logical GPUs, the CUDA ordinal: fixed for a process once it has a context."""
        return tuple(ordinal for ordinal in self.ordinals for _ in self.limits.get(ordinal, (0.0,)))


def merge_settings(
    settings: UserSettings,
    assignment: Assignment,
    allowed: Sequence[int],
    first: DevicePlacement | None = None,
    topology_fixed: bool = False,
) -> DevicePlacement:
    """What a context or session gets.

    Args:
        settings: The script's own.
        assignment: What fills in where there are none.
        allowed: The ordinals that the process may use where the script names none.
        first: What TensorFlow has made already. It never maps a logical GPU of a process to two GPUs (``GPU:0 is being
            mapped to multiple devices``) and gives a GPU one allocator, so the first placement stands on either.
        topology_fixed: Whether this TensorFlow can't add a GPU later to those that it has made.
    """
    ordinals = _ordinals(settings, allowed, first, topology_fixed)
    is_split = first is not None and len(first.logical) != len(first.ordinals)
    if settings.fraction and not (is_split and first is not None and _differ(ordinals, first.logical)):
        return DevicePlacement(ordinals, growth=_growth(settings, assignment, ordinals, {}), fraction=settings.fraction)
    limits = _limits(settings, assignment, ordinals, first)
    return DevicePlacement(ordinals, limits, _growth(settings, assignment, ordinals, limits))


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


def _limits(
    settings: UserSettings, assignment: Assignment, ordinals: Sequence[int], first: DevicePlacement | None
) -> Mapping[int, tuple[float, ...]]:
    """By ordinal: the script's limit, else what TensorFlow has there already, else the policy's."""
    limits = {ordinal: settings.limits[ordinal] for ordinal in ordinals if ordinal in settings.limits}
    # A limit on one GPU, mostly gpus[0], is meant for the GPU that the script gets. Where the script chose its GPUs
    # itself it may have meant one of them.
    only = next(iter(settings.limits.values())) if len(settings.limits) == 1 and settings.visible is None else ()
    for ordinal in ordinals:
        if ordinal in limits:
            continue
        if first and ordinal in first.ordinals:
            filled = first.limits.get(ordinal, ())
        elif only and not limits:
            filled = only
        elif ordinal in assignment.caps:
            # Whole MB: a ConfigProto holds them with 24 bits, and a cap is not to be rounded up.
            filled = (float(max(assignment.caps[ordinal] // MIB, 1)),) * assignment.logical_gpus
        else:
            # A script that caps one GPU of several does not know of a second one, and wants none taken whole.
            filled = (sum(only),) if only else ()
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
