"""A script's own settings and names for its GPUs, the settings that TensorFlow gets, and both in a ConfigProto."""

from __future__ import annotations

import os
import re
from types import MappingProxyType
from typing import Any, Iterable, Mapping, MutableMapping, Tuple
from weakref import WeakKeyDictionary

from autogpu.frameworks.base import Usage, caller_named
from autogpu.frozen import Value, replace
from autogpu.reporting.text import counted, limits_in_words

# By CUDA ordinal, MB of each logical GPU there.
Limits = Mapping[int, Tuple[float, ...]]
NO_LIMITS: Limits = MappingProxyType({})

# Read by TensorFlow's C++ when it makes the context; it beats the ConfigProto.
FORCE_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"

# With "cuda_malloc_async" CUDA's own pool allocates, to which a limit is a hint of how much to keep.
_ALLOCATOR = "TF_GPU_ALLOCATOR"

# "/gpu:1", "GPU:1", "/device:GPU:1", "/job:localhost/replica:0/task:0/device:GPU:1"; but not "XLA_GPU:1".
_NAME = re.compile(r"((?:^|[/:])gpu:)([0-9]{1,4})(?![0-9])", re.IGNORECASE)
_JOB = re.compile(r"/job:(\w+)")

# Operations that take no memory of a GPU: groups, such as an initializer, and what is fed.
_WITHOUT_MEMORY = {"NoOp", "Placeholder"}

# More than any machine has; a number comes from the script.
_MOST_GPUS = 1024


def named_gpu(name: Any) -> int | None:
    """The number of the logical GPU of this process that a name, ``DeviceSpec`` or ``LogicalDevice`` means, if any."""
    if not isinstance(name, str) and type(name).__module__.startswith("tensorflow"):
        to_string = getattr(name, "to_string", None)
        name = to_string() if callable(to_string) else getattr(name, "name", None)
    found = _NAME.search(name) if isinstance(name, str) else None
    job = _JOB.search(name) if isinstance(name, str) else None
    return int(found.group(2)) if found and (job is None or job.group(1) == "localhost") else None


def on_first_gpu(name: str) -> str:
    """The name with 0 for the GPU's number."""
    return _NAME.sub(r"\g<1>0", name, count=1)


class NamedGpus:
    """The logical GPUs that have been named so far, by number; and operations of a graph that have no device."""

    def __init__(self) -> None:
        self.found: frozenset[int] = frozenset()
        self.leaves_unplaced = False
        self._looked_at: MutableMapping[Any, int] = WeakKeyDictionary()

    def note(self, names: Iterable[Any]) -> None:
        """Note the GPUs that ``names`` mean; what can't be read is for TensorFlow to judge."""
        try:
            numbers = {named_gpu(name) for name in names}
        except Exception:
            return
        self.found |= {number for number in numbers if number is not None}

    def note_arguments(self, *args: Any, **kwargs: Any) -> None:
        """Note the GPUs that the arguments of a call mean, each a name or several."""
        for argument in (*args, *kwargs.values()):
            self.note(argument if isinstance(argument, (list, tuple)) else [argument])

    def note_graph(self, graph: Any) -> None:
        try:
            operations = graph.get_operations()
            # A graph only grows, and some scripts make a thousand sessions for one.
            new = operations[self._looked_at.get(graph, 0) :]
            self.note({operation.device for operation in new})
            unplaced = {operation.type for operation in new if not operation.device}
            self.leaves_unplaced |= not unplaced <= _WITHOUT_MEMORY
            self._looked_at[graph] = len(operations)
        except Exception:  # a class of the script's own, or no graph at all: TensorFlow says what is wrong with it
            return

    def note_callers(self) -> None:
        """Note the GPUs that Keras' ``multi_gpu_model`` is about to name: it asks for the list of devices first."""
        frame = caller_named("multi_gpu_model")
        if frame is not None:
            gpus = frame.f_locals.get("gpus")
            numbers = range(min(gpus, _MOST_GPUS)) if isinstance(gpus, int) else gpus
            self.note(f"/gpu:{number}" for number in numbers or ())


class UserSettings(Value):
    """The script's settings for its GPUs, by CUDA ordinal.

    Attributes:
        gpu_count: How many GPUs TensorFlow lists; it would have a logical GPU for each.
        visible: The GPUs that it named, in its order, of which several may have turned out to be one; ``None`` if it
            named none.
        max_count: How many it asked for, ``device_count["GPU"]``; ``None`` if it did not say.
        named: The logical GPUs that its device names mean, such as 1 of ``/gpu:1``.
        leaves_unplaced: Its graph has operations for which it names no device: TensorFlow puts them on the first GPU.
        places_hard: It has turned soft placement off, so that a name without a GPU would raise.
        growths: Memory growth, for each GPU for which it was set.
        limits: MB of each logical GPU, for each GPU for which it was set.
        fraction: ``per_process_gpu_memory_fraction``; 0 if unset. TensorFlow takes that or limits.
        limits_exclude_growth: Its limits came through ``tf.config``, where growth can't be set beside one: there a
            limit means memory that is taken at once.
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
        """These settings, and those of ``other`` where there are none; a fraction can't stand beside limits."""
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
        """These settings, where what was set for one GPU is meant for the other that stands in for it."""
        if self.visible is None or all(moved.get(ordinal, ordinal) == ordinal for ordinal in self.visible):
            return self

        def follow(by_ordinal: Mapping[int, Any]) -> dict[int, Any]:
            mine = {moved.get(o, o): value for o, value in by_ordinal.items() if o in (self.visible or ())}
            others = {o: value for o, value in by_ordinal.items() if o not in moved and o not in moved.values()}
            return {**others, **mine}

        visible = tuple(moved.get(ordinal, ordinal) for ordinal in self.visible)
        # Where several are one, that has a logical GPU for each.
        last = {len(visible) - 1} if len(set(visible)) < len(visible) else set()
        growths, limits = follow(self.growths), follow(self.limits)
        return replace(self, visible=visible, named=self.named | last, growths=growths, limits=limits)

    @property
    def plain_logical(self) -> tuple[int, ...]:
        """For each of the logical GPUs that there would be without autogpu, the CUDA ordinal."""
        visible = range(self.gpu_count) if self.visible is None else self.visible
        return _logical(visible, self.limits)[: self.max_count]

    @property
    def named_gpus(self) -> int:
        """On how many different GPUs the logical GPUs that the script names would be without autogpu."""
        plain = self.plain_logical
        return len({plain[position] for position in self.named if position < len(plain)})

    @property
    def named_logical(self) -> int:
        """How many logical GPUs there have to be for the names of the script to exist."""
        plain = len(self.plain_logical)
        return plain if self.places_hard else max((each + 1 for each in self.named if each < plain), default=0)


class DevicePlacement(Value):
    """GPUs as TensorFlow is to see them: what fills a ConfigProto.

    Attributes:
        ordinals: CUDA ordinals in TensorFlow's order.
        limits: MB of each logical GPU; a GPU without an entry is one logical GPU without a limit.
        growth: ``None`` leaves it to TensorFlow.
        fraction: As in :class:`UserSettings`.
        by_script: A limit or the fraction is the script's own.
        is_split_only: The limits are there for their number: each is about what TensorFlow would take anyway.
    """

    ordinals: tuple[int, ...] = ()
    limits: Limits = NO_LIMITS
    growth: bool | None = None
    fraction: float = 0.0
    by_script: bool = False
    is_split_only: bool = False

    @property
    def logical(self) -> tuple[int, ...]:
        """For each of TensorFlow's logical GPUs, the CUDA ordinal: fixed for a process once it has a context."""
        return _logical(self.ordinals, self.limits)


# Of a process in which TensorFlow has made no GPU yet.
NOTHING_MADE = DevicePlacement()


def _logical(ordinals: Iterable[int], limits: Limits) -> tuple[int, ...]:
    return tuple(ordinal for ordinal in ordinals for _ in limits.get(ordinal, (0.0,)))


def read_user_settings(proto: Any, gpu_count: int) -> UserSettings:
    """The settings in an explicit ConfigProto. Growth that is false can't be told from growth that is unset."""
    options = proto.gpu_options
    entries = [tuple(entry.memory_limit_mb) for entry in options.experimental.virtual_devices]
    max_count = asked_count(proto)
    visible = listed_ordinals(proto, gpu_count)
    if visible is None and len(entries) > 1:
        visible = tuple(range(len(entries)))  # an entry for each of several GPUs names them
    if visible is None and entries:
        max_count = 1  # TensorFlow wants as many GPUs as entries
    return UserSettings(
        gpu_count=gpu_count,
        visible=visible,
        max_count=max_count,
        growths=dict.fromkeys(range(gpu_count), True) if options.allow_growth else {},
        limits={ordinal: limits for ordinal, limits in zip(visible or (0,), entries) if limits},
        fraction=options.per_process_gpu_memory_fraction,
    )


def asked_count(proto: Any) -> int | None:
    """How many GPUs a ConfigProto asks for; ``None`` where it does not, or by a number that TensorFlow disregards."""
    count = int(proto.device_count.get("GPU", -1))
    return None if count < 0 else count


def listed_ordinals(proto: Any, gpu_count: int) -> tuple[int, ...] | None:
    """The GPUs of a ``visible_device_list``; ``None`` where there is none, or TensorFlow takes it for none."""
    text = proto.gpu_options.visible_device_list
    entries = [entry.strip() for entry in text.split(",")]
    # int() also reads other scripts' digits and longer numbers, which TensorFlow refuses.
    if not all(re.fullmatch(r"[+]?[0-9]{1,9}", entry) for entry in entries):
        return None
    ordinals = tuple(map(int, entries))
    return ordinals if max(ordinals) < gpu_count and len(set(ordinals)) == len(ordinals) else None


def has_invalid_list(proto: Any, gpu_count: int) -> bool:
    """TensorFlow has an answer of its own to the ``visible_device_list``: an error, or no GPU."""
    return bool(proto.gpu_options.visible_device_list) and listed_ordinals(proto, gpu_count) is None


def write_placement(proto: Any, placement: DevicePlacement, gpu_count: int) -> None:
    """Write ``placement`` into ``proto``; an entry that is as it should be keeps its other fields."""
    options = proto.gpu_options
    old = options.experimental.virtual_devices
    named = listed_ordinals(proto, gpu_count) or placement.ordinals
    entries = {ordinal: type(entry).FromString(entry.SerializeToString()) for ordinal, entry in zip(named, old)}
    del old[:]
    options.visible_device_list = ",".join(map(str, placement.ordinals))
    if not placement.ordinals:
        proto.device_count["GPU"] = 0
        return
    options.per_process_gpu_memory_fraction = placement.fraction
    if placement.growth is not None:
        options.allow_growth = placement.growth
    for ordinal in placement.ordinals if placement.limits else ():
        entry, limits = old.add(), placement.limits.get(ordinal, ())
        if ordinal in entries and tuple(entries[ordinal].memory_limit_mb) == limits:
            entry.CopyFrom(entries[ordinal])
        else:
            entry.memory_limit_mb.extend(limits)
    if "GPU" in proto.device_count:
        proto.device_count["GPU"] = len(placement.logical)


def usage_of(placement: DevicePlacement, allow_growth: bool) -> Usage:
    """A finished ConfigProto asks the driver for this: the script's settings and the policy's, merged."""
    limits_mb = [placement.limits.get(ordinal, ()) for ordinal in placement.ordinals]
    grows = {"true": True, "false": False}.get(os.environ.get(FORCE_GROWTH, ""), allow_growth)
    cap = limits_in_words(limits_mb) if any(limits_mb) else ""
    if placement.fraction:
        cap = f" to {placement.fraction:.0%} of each GPU"
    if placement.is_split_only:
        memory = f"allocated as needed, as {counted(len(placement.logical), 'logical GPU')}"
    elif cap:
        by_script = " by the script" if placement.by_script else ""
        memory = f"limited{by_script}{cap}" + (", allocated as needed" if grows else "")
    else:
        memory = "allocated as needed" if grows else "allocated whole at once"
    if cap and os.environ.get(_ALLOCATOR) == "cuda_malloc_async":
        memory += f" (not enforced with {_ALLOCATOR}=cuda_malloc_async)"
    return Usage(placement.ordinals, memory)
