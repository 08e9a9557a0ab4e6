"""What a script itself set for its GPUs, and what TensorFlow gets in the end. Pure."""

from __future__ import annotations

from types import MappingProxyType

from autogpu.frozen import frozen, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping

NO_LIMITS: Mapping[int, tuple[float, ...]] = MappingProxyType({})


@frozen
class UserSettings:
    """What a script itself set for its GPUs, by CUDA ordinal.

    Attributes:
        visible: The GPUs that it named, in its order; ``None`` if it named none.
        positions: How many it named, where several of them turned out to be on one GPU; else 0.
        max_count: How many it asked for, ``device_count["GPU"]``; ``None`` if it did not say.
        named: The logical GPUs that its device names mean, such as 1 of ``/gpu:1``.
        leaves_unplaced: Its graph has operations for which it names no device: TensorFlow puts them on the first GPU.
        places_hard: It has turned soft placement off, so that a name without a GPU would raise.
        growths: Memory growth, for each GPU for which it was set.
        limits: MB of each logical GPU, for each GPU for which it was set.
        fraction: ``per_process_gpu_memory_fraction``; 0 if unset. TensorFlow takes that or limits.
        limits_exclude_growth: Whether its limits came through ``tf.config``, where growth can't be set beside one:
            there a limit means memory that is taken at once.
    """

    visible: tuple[int, ...] | None = None
    positions: int = 0
    max_count: int | None = None
    named: frozenset[int] = frozenset()
    leaves_unplaced: bool = False
    places_hard: bool = False
    growths: Mapping[int, bool] = MappingProxyType({})
    limits: Mapping[int, tuple[float, ...]] = NO_LIMITS
    fraction: float = 0.0
    limits_exclude_growth: bool = False

    @property
    def has_size(self) -> bool:
        """Whether it says how much memory is for it."""
        return bool(self.limits or self.fraction)

    def over(self, other: UserSettings) -> UserSettings:
        """These settings, and those of ``other`` where there are none; a fraction can't stand beside limits."""
        has_size = self.has_size
        return replace(
            self,
            visible=other.visible if self.visible is None else self.visible,
            max_count=other.max_count if self.max_count is None else self.max_count,
            named=self.named | other.named,
            growths=self.growths or other.growths,
            limits=self.limits if has_size else other.limits,
            fraction=self.fraction if has_size else other.fraction,
            limits_exclude_growth=self.limits_exclude_growth if has_size else other.limits_exclude_growth,
        )

    def on_moved(self, moved: Mapping[int, int]) -> UserSettings:
        """These settings, where what was set for one GPU is meant for the other that stands in for it."""
        if self.visible is None or all(moved.get(ordinal, ordinal) == ordinal for ordinal in self.visible):
            return self

        def follow(by_ordinal: Mapping[int, Any]) -> dict[int, Any]:
            mine = {moved.get(o, o): value for o, value in by_ordinal.items() if o in (self.visible or ())}
            others = {o: value for o, value in by_ordinal.items() if o not in moved and o not in moved.values()}
            return {**others, **mine}

        visible = tuple(dict.fromkeys(moved.get(ordinal, ordinal) for ordinal in self.visible))
        lacks = len(visible) < len(self.visible)
        return replace(
            self,
            visible=visible,
            positions=len(self.visible) if lacks else 0,
            named=self.named | {len(self.visible) - 1} if lacks else self.named,
            growths=follow(self.growths),
            limits=follow(self.limits),
        )

    def plain_logical(self, gpu_count: int) -> tuple[int, ...]:
        """For each of the logical GPUs that there would be without autogpu, the CUDA ordinal."""
        visible = range(gpu_count) if self.visible is None else self.visible
        logical = [ordinal for ordinal in visible for _ in self.limits.get(ordinal, (0.0,))]
        return tuple(logical if self.max_count is None else logical[: self.max_count])

    def plain_count(self, gpu_count: int) -> int:
        """How many logical GPUs there would be without autogpu."""
        return max(len(self.plain_logical(gpu_count)), self.positions)


@frozen
class DevicePlacement:
    """GPUs as TensorFlow is to see them: what fills a ConfigProto.

    Attributes:
        ordinals: CUDA ordinals in TensorFlow's order.
        limits: MB of each logical GPU; a GPU without an entry is one logical GPU without a limit.
        growth: ``None`` leaves it to TensorFlow.
        fraction: As in :class:`UserSettings`.
        by_script: Whether a limit or the fraction is the script's own.
        is_split_only: The limits are there for their number: each is about what TensorFlow would take anyway.
    """

    ordinals: tuple[int, ...] = ()
    limits: Mapping[int, tuple[float, ...]] = NO_LIMITS
    growth: bool | None = None
    fraction: float = 0.0
    by_script: bool = False
    is_split_only: bool = False

    @property
    def logical(self) -> tuple[int, ...]:
        """For each of TensorFlow's logical GPUs, the CUDA ordinal: fixed for a process once it has a context."""
        return tuple(ordinal for ordinal in self.ordinals for _ in self.limits.get(ordinal, (0.0,)))
