"""The script's words about its GPUs and the grant, merged: what it said holds, what it left unset is filled. Pure."""

from __future__ import annotations

from types import MappingProxyType

from autogpu.frozen import frozen, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, Sequence

    from autogpu.frameworks.model import Grant

MIB = 1 << 20

_NOTHING: Mapping[int, tuple[float, ...]] = MappingProxyType({})


@frozen
class Said:
    """What a script itself said about its GPUs, by CUDA ordinal.

    Attributes:
        visible: The GPUs that it named, in its order; ``None`` if it named none.
        at_most: How many it asked for, ``device_count["GPU"]``; ``None`` if it did not say.
        growths: Memory growth, for each GPU for which it said so.
        limits: MB of each logical GPU, for each GPU for which it said so.
        fraction: ``per_process_gpu_memory_fraction``; 0 if unset. TensorFlow takes that or limits.
        limits_exclude_growth: Whether its limits came through ``tf.config``, where growth can't be said beside one:
            there a limit means memory that is taken at once.
    """

    visible: tuple[int, ...] | None = None
    at_most: int | None = None
    growths: Mapping[int, bool] = MappingProxyType({})
    limits: Mapping[int, tuple[float, ...]] = _NOTHING
    fraction: float = 0.0
    limits_exclude_growth: bool = False

    def over(self, other: Said) -> Said:
        """These words, and those of ``other`` where there are none; a fraction can't stand beside limits."""
        has_size = bool(self.limits or self.fraction)
        return replace(
            self,
            visible=other.visible if self.visible is None else self.visible,
            at_most=other.at_most if self.at_most is None else self.at_most,
            growths=self.growths or other.growths,
            limits=self.limits if has_size else other.limits,
            fraction=self.fraction if has_size else other.fraction,
            limits_exclude_growth=self.limits_exclude_growth if has_size else other.limits_exclude_growth,
        )


@frozen
class Layout:
    """GPUs as TensorFlow is to see them: what fills a ConfigProto.

    Attributes:
        ordinals: CUDA ordinals in TensorFlow's order.
        limits: MB of each logical GPU; a GPU without an entry is one logical GPU without a limit.
        growth: ``None`` leaves it to TensorFlow.
        fraction: As in :class:`Said`.
    """

    ordinals: tuple[int, ...] = ()
    limits: Mapping[int, tuple[float, ...]] = _NOTHING
    growth: bool | None = None
    fraction: float = 0.0

    @property
    def logical(self) -> tuple[int, ...]:
        """For each of TensorFlow's logical GPUs, the CUDA ordinal: fixed for a process once it has a context."""
        return tuple(ordinal for ordinal in self.ordinals for _ in self.limits.get(ordinal, (0.0,)))


def settled(
    said: Said, grant: Grant, frame: Sequence[int], made: Layout | None = None, is_final: bool = False
) -> Layout:
    """What a context or session gets.

    Args:
        said: The script's words.
        grant: What fills in where there are none.
        frame: The ordinals that the process may use where the script names none.
        made: What TensorFlow has made already. It never maps a logical GPU of a process to two GPUs (``GPU:0 is being
            mapped to multiple devices``) and gives a GPU one allocator, so the first word on either stands.
        is_final: Whether this TensorFlow can't add a GPU later to those that it has made.
    """
    ordinals = _ordinals(said, frame, made, is_final)
    is_split = made is not None and len(made.logical) != len(made.ordinals)
    if said.fraction and not (is_split and made is not None and _differ(ordinals, made.logical)):
        return Layout(ordinals, growth=_growth(said, grant, ordinals, {}), fraction=said.fraction)
    limits = _limits(said, grant, ordinals, made)
    return Layout(ordinals, limits, _growth(said, grant, ordinals, limits))


def _ordinals(said: Said, frame: Sequence[int], made: Layout | None, is_final: bool) -> tuple[int, ...]:
    wanted = tuple(frame if said.visible is None else said.visible)
    first = made.ordinals if made else ()
    # Plain TensorFlow counts 0, 1, 2 from its first context on, so a script that names those, or none, worked. One that
    # names others after that raises without us as well, and hears TensorFlow's own error.
    is_plain_order = said.visible is None or wanted == tuple(range(len(wanted)))
    if first and is_plain_order:
        if is_final or not set(first) <= set(wanted):
            wanted = first[: len(wanted)]
        elif _differ(wanted, first):
            wanted = first + tuple(ordinal for ordinal in wanted if ordinal not in first)
    return wanted if said.at_most is None else wanted[: said.at_most]


def _differ(one: Sequence[int], other: Sequence[int]) -> bool:
    return any(a != b for a, b in zip(one, other))


def _limits(said: Said, grant: Grant, ordinals: Sequence[int], made: Layout | None) -> Mapping[int, tuple[float, ...]]:
    """By ordinal: the script's limit, else what TensorFlow has there already, else the policy's."""
    limits = {ordinal: said.limits[ordinal] for ordinal in ordinals if ordinal in said.limits}
    # A limit on one GPU, mostly gpus[0], is meant for the GPU that the script gets. Where the script chose its GPUs
    # itself it may have meant one of them.
    only = next(iter(said.limits.values())) if len(said.limits) == 1 and said.visible is None else ()
    for ordinal in ordinals:
        if ordinal in limits:
            continue
        if made and ordinal in made.ordinals:
            filled = made.limits.get(ordinal, ())
        elif only and not limits:
            filled = only
        elif ordinal in grant.caps:
            # Whole MB: a ConfigProto holds them with 24 bits, and a cap is not to be rounded up.
            filled = (float(max(grant.caps[ordinal] // MIB, 1)),) * grant.logical_gpus
        else:
            # Who caps one GPU of several knows of no second one, and wants none taken whole.
            filled = (sum(only),) if only else ()
        if filled:
            limits[ordinal] = filled
    return limits


def _growth(said: Said, grant: Grant, ordinals: Sequence[int], limits: Mapping[int, tuple[float, ...]]) -> bool | None:
    is_limited = bool(said.limits) and all(ordinal in limits for ordinal in ordinals)
    # A limit on a GPU that the script did not choose in the end is no word about the others.
    in_force = sum(ordinal in said.limits for ordinal in ordinals)
    if not in_force and said.visible is None:
        in_force = len(said.limits)
    # Beside the policy's own limits growth is the policy's to say.
    is_policys = bool(grant.caps) and in_force < len(ordinals)
    if said.limits_exclude_growth and is_limited and not is_policys:
        return None
    growth = said_growth(said.growths, ordinals)
    return grant.growth if growth is None else growth


def said_growth(growths: Mapping[int, bool], ordinals: Sequence[int]) -> bool | None:
    """What the script's words mean for ``ordinals``; ``None`` where they say nothing, or contradict each other.

    What is said for ``gpus[0]`` alone is meant for the GPU that the script gets, and for all of them: TensorFlow
    refuses to run with two GPUs that differ.
    """
    words = {growths[ordinal] for ordinal in ordinals if ordinal in growths} or set(growths.values())
    return words.pop() if len(words) == 1 else None
