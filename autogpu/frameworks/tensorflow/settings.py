"""A script's own settings for its GPUs, completed by the assignment if the script left them unset.

If a script names a GPU that the process does not have, it gets one more logical GPU on a GPU that the process has.
autogpu reads the settings from a ConfigProto, and writes the result into a ConfigProto.
"""

from __future__ import annotations

import os
import re
from types import MappingProxyType
from typing import Any, Iterable, Mapping, Sequence, Tuple

from autogpu.frameworks.model import Assignment, Usage
from autogpu.frozen import Value, replace
from autogpu.reporting.memory import memory_in_words, not_enforced
from autogpu.text import MIB, counted

# MiB of each logical GPU on a GPU, keyed by the CUDA ordinal of the GPU. TensorFlow calls this unit MB.
Limits = Mapping[int, Tuple[float, ...]]
NO_LIMITS: Limits = MappingProxyType({})

# TensorFlow's C++ reads this variable when it makes the context. The variable overrides the ConfigProto.
FORCE_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"

# This allocator uses CUDA's own pool. The pool treats a limit only as a hint of how much memory to keep.
_ALLOCATOR = "TF_GPU_ALLOCATOR"
_UNLIMITED = "cuda_malloc_async"

# The smallest limit with which TensorFlow can start a logical GPU. It treats a limit below 1 MiB as no memory.
_SMALLEST_MIB = 1.0

# For a GPU whose memory is unknown: more than any GPU has, so TensorFlow allocates as much as it can.
_UNKNOWN_BYTES = MIB << 20


class UserSettings(Value):
    """The script's settings for its GPUs. GPUs are CUDA ordinals.

    Attributes:
        gpu_count: How many GPUs TensorFlow lists. By default it makes one logical GPU on each.
        visible: The script's list of GPUs, in its order; ``None`` if the script set none. A GPU is listed twice if two
            numbers of the script stand for it.
        max_count: How many GPUs the script asked for, by ``device_count["GPU"]``; ``None`` if unset.
        named: The logical GPUs that the script's device names mean, such as 1 for ``/gpu:1``.
        leaves_unplaced: True if the graph has operations without a device. TensorFlow puts these on the first GPU.
        places_hard: True if the script has turned soft placement off. The name of a missing GPU would then raise.
        growths: Memory growth, keyed by the GPUs for which the script set it.
        limits: MiB of each logical GPU, keyed by the GPUs for which the script set them.
        fraction: ``per_process_gpu_memory_fraction``; 0 if unset. TensorFlow accepts a fraction or limits, not both.
        limits_exclude_growth: True if the script set the limits through ``tf.config``, which does not allow growth on
            a GPU with a limit: TensorFlow allocates the memory of that limit at once.
    """

    gpu_count: int = 0
    visible: tuple[int, ...] | None = None
    max_count: int | None = None
    named: frozenset[int] = frozenset()
    leaves_unplaced: bool = False
    places_hard: bool = False
    growths: Mapping[int, bool] = MappingProxyType({})
    limits: Limits = NO_LIMITS
    fraction: float = 0.0
    limits_exclude_growth: bool = False

    @property
    def has_size(self) -> bool:
        return bool(self.limits or self.fraction)

    def over(self, other: UserSettings) -> UserSettings:
        """Return these settings, completed by those of ``other`` that are unset here.

        The limits and the fraction come from one of the two, because TensorFlow does not accept both together.
        """
        sized = self if self.has_size else other
        return replace(
            self,
            visible=other.visible if self.visible is None else self.visible,
            max_count=other.max_count if self.max_count is None else self.max_count,
            growths=self.growths or other.growths,
            limits=sized.limits,
            fraction=sized.fraction,
            limits_exclude_growth=sized.limits_exclude_growth,
        )

    def on_moved(self, moved: Mapping[int, int]) -> UserSettings:
        """Return these settings with the ordinals of the GPUs that the script's numbers stand for."""
        if self.visible is None or not moved:
            return self
        visible = tuple(moved.get(number, number) for number in self.visible)
        # If several numbers stand for one GPU, the GPU gets a logical GPU for each number.
        last = {len(visible) - 1} if len(set(visible)) < len(visible) else set()
        growths = {moved.get(number, number): growth for number, growth in self.growths.items()}
        limits = {moved.get(number, number): parts for number, parts in self.limits.items()}
        return replace(self, visible=visible, named=self.named | last, growths=growths, limits=limits)

    @property
    def plain_logical(self) -> tuple[int, ...]:
        """The CUDA ordinal of each logical GPU that would exist without autogpu."""
        visible = range(self.gpu_count) if self.visible is None else self.visible
        return _logical(visible, self.limits)[: self.max_count]

    @property
    def named_gpus(self) -> int:
        """The number of different GPUs that the script's device names would mean without autogpu."""
        plain = self.plain_logical
        return len({plain[position] for position in self.named if position < len(plain)})

    @property
    def named_logical(self) -> int:
        """The number of logical GPUs that must exist for the script's device names."""
        plain = len(self.plain_logical)
        return plain if self.places_hard else max((each + 1 for each in self.named if each < plain), default=0)


class DevicePlacement(Value):
    """The GPUs that TensorFlow gets, as settings for a ConfigProto.

    Attributes:
        ordinals: CUDA ordinals in TensorFlow's order.
        limits: MiB of each logical GPU; a GPU without an entry is one logical GPU without a limit.
        growth: True for memory growth; ``None`` leaves that to TensorFlow.
        fraction: As in :class:`UserSettings`.
        by_script: True if a limit or the fraction is the script's own.
        is_split_only: True if the limits only set the number of logical GPUs. Each limit is about as high as what
            TensorFlow would allocate without it.
    """

    ordinals: tuple[int, ...] = ()
    limits: Limits = NO_LIMITS
    growth: bool | None = None
    fraction: float = 0.0
    by_script: bool = False
    is_split_only: bool = False

    @property
    def logical(self) -> tuple[int, ...]:
        """The CUDA ordinal of each of TensorFlow's logical GPUs. This is fixed once the process has a context."""
        return _logical(self.ordinals, self.limits)


# The placement of a process in which TensorFlow has made no GPU yet.
NOTHING_MADE = DevicePlacement()


def _logical(ordinals: Iterable[int], limits: Limits) -> tuple[int, ...]:
    return tuple(ordinal for ordinal in ordinals for _ in limits.get(ordinal, (0.0,)))


def merge_settings(
    settings: UserSettings,
    assignment: Assignment,
    allowed: Sequence[int],
    first: DevicePlacement = NOTHING_MADE,
    topology_fixed: bool = False,
) -> DevicePlacement:
    """Merge the settings of a script and the assignment for one context or session.

    Args:
        allowed: The ordinals that the process may use if the script lists none.
        first: The placement of the GPUs that TensorFlow has made already. TensorFlow never maps a logical GPU of a
            process to two GPUs (``GPU:0 is being mapped to multiple devices``), and makes one allocator for each GPU.
            So the logical GPUs and limits of the first placement remain.
        topology_fixed: True if this TensorFlow can't add a GPU to those that it has made.
    """
    ordinals = _ordinals(settings, allowed, first.ordinals, topology_fixed)
    is_split = len(first.logical) != len(first.ordinals)
    if settings.fraction and not (is_split and any(one != made for one, made in zip(ordinals, first.logical))):
        growth = _growth(settings, assignment, ordinals, {})
        placement = DevicePlacement(ordinals, growth=growth, fraction=settings.fraction, by_script=True)
    else:
        own = _script_limits(settings, ordinals, first.ordinals)
        limits = _limits(own, assignment, ordinals, first)
        growth = _growth(settings, assignment, ordinals, own)
        placement = DevicePlacement(ordinals, limits, growth, by_script=bool(own))
    # Existing logical GPUs have their memory already. In a later session, soft placement handles missing names.
    if placement.ordinals and not first.ordinals:
        placement = _with_named(placement, settings, assignment)
    return _within_ceilings(placement, assignment)


def _ordinals(
    settings: UserSettings, allowed: Sequence[int], made: tuple[int, ...], topology_fixed: bool
) -> tuple[int, ...]:
    wanted = tuple(dict.fromkeys(allowed if settings.visible is None else settings.visible))
    # After the first context, TensorFlow without autogpu accepts the list 0, 1, 2 and so on, or no list. Scripts with
    # these must work here, too. Any other list raises without autogpu as well, and gets TensorFlow's own error.
    is_plain_order = settings.visible is None or wanted == tuple(range(len(wanted)))
    if made and is_plain_order:
        can_add = set(made) <= set(wanted) and not topology_fixed
        wanted = made + tuple(o for o in wanted if o not in made) if can_add else made[: len(wanted)]
    return wanted[: settings.max_count]


def _script_limits(settings: UserSettings, ordinals: Sequence[int], made: Sequence[int]) -> Limits:
    limits = {ordinal: settings.limits[ordinal] for ordinal in ordinals if ordinal in settings.limits}
    if limits or len(settings.limits) != 1 or settings.visible is not None:
        return limits
    # A limit on one GPU, usually gpus[0], is meant for the GPU that the script gets. If the script chose its GPUs, the
    # limit may be meant for that very GPU.
    (only,) = settings.limits.values()
    unmade = [ordinal for ordinal in ordinals if ordinal not in made]
    return dict.fromkeys(unmade[:1], only)


def _limits(own: Limits, assignment: Assignment, ordinals: Sequence[int], first: DevicePlacement) -> Limits:
    """Return the script's own limit of each GPU, else that of the first placement, else the policy's."""
    policys = {ordinal: (_whole_mib(cap.bytes),) * assignment.logical_gpus for ordinal, cap in assignment.caps.items()}
    made = {ordinal: first.limits.get(ordinal, ()) for ordinal in first.ordinals}
    found = {**policys, **made, **own}
    return {ordinal: found[ordinal] for ordinal in ordinals if found.get(ordinal)}


def _growth(settings: UserSettings, assignment: Assignment, ordinals: Sequence[int], own: Limits) -> bool | None:
    if settings.limits_exclude_growth and own and all(ordinal in own for ordinal in ordinals):
        return None
    growth = user_growth(settings.growths, ordinals)
    return assignment.growth if growth is None else growth


def user_growth(growths: Mapping[int, bool], ordinals: Sequence[int]) -> bool | None:
    """Return the script's memory growth for ``ordinals``; ``None`` if it is unset, or not the same on all of them.

    Growth for ``gpus[0]`` alone is meant for the GPU that the script gets, and applies to all its GPUs: TensorFlow
    refuses to run with two GPUs that differ in growth.
    """
    values = {growths[ordinal] for ordinal in ordinals if ordinal in growths} or set(growths.values())
    return values.pop() if len(values) == 1 else None


def _with_named(placement: DevicePlacement, settings: UserSettings, assignment: Assignment) -> DevicePlacement:
    """Add a logical GPU for each name of the script whose GPU would exist without autogpu.

    Put different names on different GPUs, as far as possible. Logical GPUs with the numbers in between exist as well.
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
    """Return the numbers of each GPU's logical GPUs; together there are ``wanted`` logical GPUs."""
    gpus = len(placement.ordinals)
    if len(placement.logical) == gpus and len(named) >= gpus:
        # Spread the names over the GPUs, in order, as evenly as possible.
        starts = [named[place * len(named) // gpus] for place in range(1, gpus)]
    else:
        starts = [placement.logical.index(ordinal) for ordinal in placement.ordinals[1:]]
    return [range(start, end) for start, end in zip([0, *starts], [*starts, wanted])]


def _parts(placement: DevicePlacement, assignment: Assignment, ordinal: int, used: Sequence[bool]) -> tuple[float, ...]:
    """Return the MiB of each logical GPU. Only those in use divide a limit. Without a limit, all divide the memory."""
    given = placement.limits.get(ordinal, ())
    count = len(used)
    if placement.fraction:
        return (_fraction_mib(placement, assignment, ordinal),) * count
    if given and placement.by_script:
        # The script's own limit also holds for each added logical GPU. The claim includes all of these limits.
        return (*given, *[given[-1]] * (count - len(given)))
    size = sum(given) or _whole_mib(assignment.usable.get(ordinal, _UNKNOWN_BYTES))
    if placement.growth and not given:
        return (size,) * count  # each may grow to all of the memory
    # If the policy itself has split the limit, all parts are equal.
    dividing = used if any(used) and len(given) == 1 else [True] * count
    rest = size - _SMALLEST_MIB * dividing.count(False)
    part = max(float(rest // dividing.count(True)), _SMALLEST_MIB)
    return tuple(part if takes_part else _SMALLEST_MIB for takes_part in dividing)


def _within_ceilings(placement: DevicePlacement, assignment: Assignment) -> DevicePlacement:
    """Cut all limits, including the script's own, to the ceilings of the GPUs."""
    if assignment.ceilings.keys().isdisjoint(placement.ordinals):
        return placement
    limits = dict(placement.limits)
    for ordinal in placement.ordinals:
        if placement.fraction:
            limits[ordinal] = (_fraction_mib(placement, assignment, ordinal),)
        parts = limits.get(ordinal, ())
        cap = assignment.ceilings.get(ordinal)
        ceiling = (cap.bytes if cap else _UNKNOWN_BYTES) // MIB
        if sum(parts) > ceiling:
            limits[ordinal] = tuple(float(max(int(ceiling * part / sum(parts)), 1)) for part in parts)
    return replace(placement, limits=limits, fraction=0.0)


def _fraction_mib(placement: DevicePlacement, assignment: Assignment, ordinal: int) -> float:
    return _whole_mib(placement.fraction * assignment.totals.get(ordinal, _UNKNOWN_BYTES))


def _whole_mib(size_bytes: float) -> float:
    # A ConfigProto stores a limit with 24 bits, which are enough for whole MiB. A cap must not be rounded up.
    return float(max(int(size_bytes) // MIB, 1))


def read_user_settings(proto: Any, gpu_count: int) -> UserSettings:
    """Return the settings in an explicit ConfigProto. In a ConfigProto, false growth looks like unset growth."""
    options = proto.gpu_options
    entries = [tuple(entry.memory_limit_mb) for entry in options.experimental.virtual_devices]
    max_count = asked_count(proto)
    visible = listed_ordinals(proto, gpu_count)
    if visible is None and len(entries) > 1:
        visible = tuple(range(len(entries)))  # several entries stand for the first GPUs, one for each
    if visible is None and entries:
        max_count = 1  # TensorFlow requires as many GPUs as entries
    return UserSettings(
        gpu_count=gpu_count,
        visible=visible,
        max_count=max_count,
        growths=dict.fromkeys(range(gpu_count), True) if options.allow_growth else {},
        limits={ordinal: limits for ordinal, limits in zip(visible or (0,), entries) if limits},
        fraction=options.per_process_gpu_memory_fraction,
    )


def asked_count(proto: Any) -> int | None:
    """Return how many GPUs a ConfigProto asks for; ``None`` if the number is unset or TensorFlow ignores it."""
    count = int(proto.device_count.get("GPU", -1))
    return None if count < 0 else count


def listed_ordinals(proto: Any, gpu_count: int) -> tuple[int, ...] | None:
    """Return the GPUs in a ``visible_device_list``; ``None`` if the list is empty or TensorFlow does not accept it."""
    text = proto.gpu_options.visible_device_list
    entries = [entry.strip() for entry in text.split(",")]
    # int() also accepts digits of other alphabets and longer numbers, which TensorFlow refuses.
    if not all(re.fullmatch(r"[+]?[0-9]{1,9}", entry) for entry in entries):
        return None
    ordinals = tuple(map(int, entries))
    return ordinals if max(ordinals) < gpu_count and len(set(ordinals)) == len(ordinals) else None


def has_invalid_list(proto: Any, gpu_count: int) -> bool:
    """True if TensorFlow responds to the ``visible_device_list`` with an error, or uses no GPU."""
    return bool(proto.gpu_options.visible_device_list) and listed_ordinals(proto, gpu_count) is None


def write_placement(proto: Any, placement: DevicePlacement) -> None:
    """Write ``placement`` into ``proto``. An entry whose limits are right already keeps its other fields."""
    options = proto.gpu_options
    old = options.experimental.virtual_devices
    copies = [type(entry).FromString(entry.SerializeToString()) for entry in old]
    entries = dict(zip(placement.ordinals, copies))
    del old[:]
    options.visible_device_list = ",".join(map(str, placement.ordinals))
    if not placement.ordinals:
        proto.device_count["GPU"] = 0
        return
    options.per_process_gpu_memory_fraction = placement.fraction
    if placement.growth is not None:
        options.allow_growth = placement.growth
    for ordinal in placement.ordinals if placement.limits else ():
        entry = old.add()
        limits = placement.limits.get(ordinal, ())
        if ordinal in entries and tuple(entries[ordinal].memory_limit_mb) == limits:
            entry.CopyFrom(entries[ordinal])
        else:
            entry.memory_limit_mb.extend(limits)
    if "GPU" in proto.device_count:
        proto.device_count["GPU"] = len(placement.logical)


def usage_of(placement: DevicePlacement, allow_growth: bool) -> Usage:
    limits_mib = [placement.limits.get(ordinal, ()) for ordinal in placement.ordinals]
    grows = {"true": True, "false": False}.get(os.environ.get(FORCE_GROWTH, ""), allow_growth)
    memory = memory_in_words(limits_mib, placement.fraction, grows=grows, by_script=placement.by_script)
    if placement.is_split_only:
        memory = f"allocated as needed, as {counted(len(placement.logical), 'logical GPU')}"
    is_limited = placement.fraction or any(limits_mib)
    if is_limited and not placement.is_split_only and os.environ.get(_ALLOCATOR) == _UNLIMITED:
        memory += not_enforced(f"{_ALLOCATOR}={_UNLIMITED}")
    return Usage(placement.ordinals, memory)
