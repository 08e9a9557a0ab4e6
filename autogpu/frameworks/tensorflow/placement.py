"""The placement of a process, which all entry points share, and the GPUs that the script has named so far."""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, Iterable, Iterator, MutableMapping
from weakref import WeakKeyDictionary

from autogpu.errors import ignoring
from autogpu.frameworks.base import caller_named, put_back
from autogpu.frameworks.model import Assignment, DeviceRequest, Usage
from autogpu.frameworks.tensorflow.settings import (
    NOTHING_MADE,
    DevicePlacement,
    UserSettings,
    asked_count,
    has_invalid_list,
    merge_settings,
    read_user_settings,
    usage_of,
    write_placement,
)
from autogpu.frozen import replace
from autogpu.text import MIB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.frameworks.base import HookedFramework

# TensorFlow 1.15 keeps its code in tensorflow_core; some modules are loaded only under that name.
_ROOTS = ("tensorflow", "tensorflow_core")

# Attribute of a Context whose GPUs the script has chosen.
SCRIPT_CHOSE = "_autogpu_script_chose"

# "/gpu:1", "GPU:1", "/device:GPU:1", "/job:localhost/replica:0/task:0/device:GPU:1"; but not "XLA_GPU:1".
_NAME = re.compile(r"((?:^|[/:])gpu:)([0-9]{1,4})(?![0-9])", re.IGNORECASE)
_JOB = re.compile(r"/job:(\w+)")

# The classes with which TensorFlow describes a device. autogpu reads no attribute of other objects. If such an object
# has a C++ class and is not complete yet, as a ``Mesh`` in its own ``__init__``, reading an attribute crashes the
# process.
_DESCRIPTIONS = {"DeviceSpecV2", "LogicalDevice"}

# Types of operations that use no memory of a GPU: groups, such as an initializer, and inputs.
_WITHOUT_MEMORY = {"NoOp", "Placeholder"}

# An upper bound for a number from the script. No machine has so many GPUs.
_MOST_GPUS = 1024


def module_of(path: str) -> Any:
    """Return a module of TensorFlow's package or of its folder ``python``; ``None`` if it is not loaded."""
    names = [f"{root}{folder}.{path}" for root in _ROOTS for folder in (".python", "")]
    return next(filter(None, map(sys.modules.get, names)), None)


def named_gpu(name: Any) -> int | None:
    """Return the logical GPU that a text, ``DeviceSpec`` or ``LogicalDevice`` means; ``None`` if it means none."""
    if not _DESCRIPTIONS.isdisjoint(kind.__name__ for kind in type(name).__mro__):
        to_string = getattr(name, "to_string", None)
        name = to_string() if callable(to_string) else getattr(name, "name", None)
    text = name if isinstance(name, str) else ""
    found = _NAME.search(text)
    job = _JOB.search(text)
    return int(found.group(2)) if found and (job is None or job.group(1) == "localhost") else None


class NamedGpus:
    """The logical GPUs that the script has named so far.

    Attributes:
        found: Their numbers.
        leaves_unplaced: True if a graph has operations without a device that use memory.
    """

    def __init__(self) -> None:
        self.found: frozenset[int] = frozenset()
        self.leaves_unplaced = False
        self._known: set[str] = set()
        self._looked_at: MutableMapping[Any, int] = WeakKeyDictionary()

    def note(self, names: Iterable[Any]) -> None:
        """Note the GPUs that ``names`` mean. Ignore unreadable names, which TensorFlow will report."""
        with ignoring(Exception):
            numbers = {named_gpu(name) for name in names}
            self.found |= {number for number in numbers if number is not None}

    def is_known(self, name: Any) -> bool:
        """True if this name was passed in an earlier call; else remember it. Scripts use some names at each step."""
        if not isinstance(name, str) or name in self._known:
            return isinstance(name, str)
        self._known.add(name)
        return False

    def note_arguments(self, *args: Any, **kwargs: Any) -> None:
        for argument in (*args, *kwargs.values()):
            self.note(argument if isinstance(argument, (list, tuple)) else [argument])

    def note_graph(self, graph: Any) -> None:
        # The object may be of a class of the script, or no graph at all. TensorFlow will report that.
        with ignoring(Exception):
            operations = graph.get_operations()
            # Read only new operations: a graph only grows, and some scripts make a thousand sessions for one graph.
            new = operations[self._looked_at.get(graph, 0) :]
            self.note({operation.device for operation in new})
            unplaced = {operation.type for operation in new if not operation.device}
            self.leaves_unplaced |= not unplaced <= _WITHOUT_MEMORY
            self._looked_at[graph] = len(operations)

    def note_callers(self) -> None:
        """Note the GPUs that Keras' ``multi_gpu_model`` is about to name, if it is asking for the devices now."""
        frame = caller_named("multi_gpu_model")
        if frame is not None:
            gpus = frame.f_locals.get("gpus")
            numbers = range(min(gpus, _MOST_GPUS)) if isinstance(gpus, int) else gpus
            self.note(f"/gpu:{number}" for number in numbers or ())


class PlacementResolver:
    """Resolves which GPUs TensorFlow gets, whichever entry point the script uses first.

    Attributes:
        gpu_count: How many GPUs TensorFlow lists; 0 before the first placement.
        while_names_count: Functions that are hooked as long as a device name can have an effect, as (holder, name,
            original function).
    """

    def __init__(self, framework: HookedFramework, *, has_xla_devices: bool) -> None:
        """Resolve nothing yet.

        Args:
            has_xla_devices: True if this TensorFlow lists XLA_GPU:0 and so on as well. It counts these once per
                process, so it can't add a GPU later.
        """
        self.framework = framework
        self.named = NamedGpus()
        self.gpu_count = 0
        self.while_names_count: list[tuple[Any, str, Any]] = []
        self._plain_count = 0
        self._has_devices = False
        self._has_reported_late = False
        self._context_module = module_of("eager.context")
        self.has_xla_devices = has_xla_devices
        self._allowed: tuple[int, ...] | None = None
        self._first = NOTHING_MADE

    def completed(self, proto: Any) -> Any:
        """Return a copy of an explicit ConfigProto, with the settings filled in that the script left unset.

        ``None`` stands for an empty proto. Return the argument itself if there is nothing to fill in.
        """
        copy = self.copied(proto)
        if copy is None or asked_count(copy) == 0:
            return proto
        with self.framework.lock, self.framework.guard():
            self.framework.prepare()
            gpus = self.listed_gpus()
            if has_invalid_list(copy, len(gpus)):
                return proto
            settings = self.settings_of(self._context_module.context(), gpus)
            placement = self.resolve_placement(read_user_settings(copy, len(gpus)).over(settings))
            if placement is not None:
                self.apply(placement, copy)
                return copy
        return proto

    def copied(self, proto: Any) -> Any:
        """Return a copy of a ConfigProto, an empty one for ``None``; ``None`` for an object that TensorFlow rejects."""
        kind = self._context_module.config_pb2.ConfigProto
        if proto is None:
            return kind()
        return deepcopy(proto) if isinstance(proto, kind) else None

    def gpus_of(self, context: Any) -> list[Any]:
        """Return the CUDA GPUs that TensorFlow lists, in CUDA's order."""
        gpus = [device for device in context._physical_devices if device.device_type == "GPU"]
        if any(gpu in getattr(context, "_pluggable_devices", ()) for gpu in gpus):
            # A plug-in device may have the type GPU, too. It has no CUDA ordinal, and NVML does not list it.
            self.framework.on_unsupported(
                "this TensorFlow gets its GPUs from a plug-in, and autogpu supports NVIDIA GPUs only"
            )
            self._allowed = ()
            return []
        return gpus

    def settings_of(self, context: Any, gpus: list[Any]) -> UserSettings:
        """Return the script's settings from ``tf.config`` and ``enable_eager_execution``."""
        limits = {}
        for ordinal, gpu in enumerate(gpus):
            each = tuple(logical.memory_limit for logical in context._virtual_device_map.get(gpu, ()))
            if each and None not in each:
                limits[ordinal] = each
        growths = {ordinal: context._memory_growth_map[gpu] for ordinal, gpu in enumerate(gpus)}
        settings = UserSettings(
            gpu_count=len(gpus),
            visible=self._chosen(context, gpus),
            places_hard=getattr(context, "_soft_device_placement", None) is False,
            growths={ordinal: growth for ordinal, growth in growths.items() if growth is not None},
            limits=limits,
            limits_exclude_growth=bool(limits),
        )
        own = getattr(context, "_config", None)
        return settings if own is None else settings.over(read_user_settings(own, len(gpus)))

    def _chosen(self, context: Any, gpus: list[Any]) -> tuple[int, ...] | None:
        visible = context._visible_device_list
        has_chosen = getattr(context, SCRIPT_CHOSE, False)
        if not hasattr(context, "set_visible_devices"):  # there is no function to hook, so compare
            has_chosen = any(gpu not in visible for gpu in gpus)
        return tuple(ordinal for ordinal, gpu in enumerate(gpus) if gpu in visible) if has_chosen else None

    def resolve_placement(self, settings: UserSettings) -> DevicePlacement | None:
        """Return the placement for an entry point; ``None`` if TensorFlow has no GPU, or the script asks for none."""
        if settings.max_count == 0:
            return None
        self.gpu_count = settings.gpu_count
        if not self.gpu_count:
            if self._allowed is None:
                self.framework.on_usage(Usage((), ""))
            return None
        self.named.note_callers()
        self.named.note_graph(_default_graph())
        settings = replace(settings, named=self.named.found, leaves_unplaced=self.named.leaves_unplaced)
        self._plain_count = max(self._plain_count, len(settings.plain_logical))
        assignment = self.framework.assign(_request(settings))
        settings = self._as_assigned(settings, assignment)
        if self._allowed is None:
            chosen = tuple(range(self.gpu_count)) if settings.visible is None else settings.visible
            self._allowed = chosen if assignment.ordinals is None else assignment.ordinals
        return merge_settings(settings, assignment, self._allowed, self._first, self.has_xla_devices)

    def _as_assigned(self, settings: UserSettings, assignment: Assignment) -> UserSettings:
        is_eager = self._context_module.context().executing_eagerly()
        if is_eager and len(settings.named) == 1 and assignment.caps and not settings.has_size:
            # Soft placement runs eager code on an existing GPU. A single name needs no logical GPU that splits a cap.
            settings = replace(settings, named=frozenset())
        if settings.visible and assignment.ordinals == ():
            settings = replace(settings, visible=())
        return settings.on_moved(assignment.moved)

    def apply(self, placement: DevicePlacement, proto: Any) -> None:
        """Write ``placement`` into a ConfigProto that TensorFlow is about to use, and report the usage."""
        write_placement(proto, placement)
        # If more GPUs would exist without autogpu and the script names one later, soft placement uses an existing GPU.
        proto.allow_soft_placement |= len(placement.logical) < self.gpu_count
        if len(placement.logical) > len(self._first.logical):
            self._first = placement
        self.framework.on_usage(usage_of(placement, proto.gpu_options.allow_growth))

    def on_context(self) -> None:
        """Note that TensorFlow has made its devices, or is about to make them. Later names can't add GPUs."""
        self._has_devices = True
        if not self.lacks(self._plain_count - 1):
            self._ignore_names()

    def _ignore_names(self) -> None:
        for holder, name, original in self.while_names_count:
            put_back(holder, name, original)
        self.while_names_count = []

    def report_late_names(self, strategy: str = "", replicas: int = 0, wanted: int = 0) -> None:
        """Print one line, the first time that the script names a GPU too late for it to exist.

        Args:
            strategy: The class of a strategy, if the script passed the name to one.
            replicas: How many replicas this strategy has.
            wanted: How many devices the script passed to it.
        """
        late = [number for number in self.named.found if number < self._plain_count and self.lacks(number)]
        if late and self._has_devices and not self._has_reported_late:
            self._has_reported_late = True
            self._ignore_names()
            taken = len(self._first.ordinals)
            with self.framework.guard():
                if replicas < wanted:
                    self.framework.on_late_replicas(strategy, replicas, wanted, taken)
                else:
                    self.framework.on_late_name(max(late), taken)

    def softened(self, proto: Any) -> Any:
        """Return a copy of a ConfigProto (``None``: the context's), with soft placement if GPUs are missing."""
        if proto is None:
            context = self._context_module.context()
            proto = type(context).config.fget.__wrapped__(context)  # without our hook, as no context is made here
        copy = self.copied(proto)
        if copy is None:
            return proto
        copy.allow_soft_placement |= self.lacks(self.gpu_count - 1)
        return copy

    def listed_gpus(self) -> list[Any]:
        """Return the CUDA GPUs that TensorFlow lists. Make no context."""
        context = self._context_module.context()
        context._initialize_physical_devices()
        return self.gpus_of(context)

    def lacks(self, number: int) -> bool:
        """True if logical GPU ``number`` would exist without autogpu, but does not exist."""
        return (len(self._first.logical) or self.gpu_count) <= number < self.gpu_count

    def existing(self, name: Any, number: int = 0) -> Any:
        """Return ``name``, or the name of GPU ``number`` if ``name`` means a GPU that exists only without autogpu."""
        return _NAME.sub(rf"\g<1>{number}", name, count=1) if self._is_missing(name) else name

    def _is_missing(self, name: Any) -> bool:
        number = named_gpu(name) if isinstance(name, str) else None
        return number is not None and self.lacks(number)

    def existing_replicas(self, names: Any) -> Any:
        """Return the existing devices for the replicas of a strategy, each device once.

        Two replicas on one device would wait for each other forever. If a name means a GPU that exists only without
        autogpu, return an existing GPU that no name means. If there is none left, leave the name out.
        """
        if not isinstance(names, (list, tuple)) or not any(map(self._is_missing, names)):
            return names
        meant = {named_gpu(name) for name in names}
        unused = [number for number in range(len(self._first.logical)) if number not in meant]
        found = []
        for name in names:
            if not self._is_missing(name):
                found.append(name)
            elif unused:
                found.append(self.existing(name, unused.pop(0)))
        return found

    @contextmanager
    def only_cards_in_use(self) -> Iterator[None]:
        """Have TensorFlow list only those physical GPUs on which this process has a context."""
        context = self._context_module.context()
        if context.executing_eagerly():
            context.ensure_initialized()  # the strategy's constructor begins with this, too
        if not self._first.ordinals:
            yield
            return
        original = context.list_physical_devices
        gpus = self.gpus_of(context)
        unused = [gpu for ordinal, gpu in enumerate(gpus) if ordinal not in self._first.ordinals]

        def list_physical_devices(device_type: Any = None) -> list[Any]:
            return [device for device in original(device_type) if device not in unused]

        context.list_physical_devices = list_physical_devices
        try:
            yield
        finally:
            del context.list_physical_devices


def _default_graph() -> Any:
    """Return the default graph; ``None`` if there is none.

    TensorFlow's own function would make a graph then, and eager execution can't be enabled after that.
    """
    graphs: Any = getattr(module_of("framework.ops"), "_default_graph_stack", None)
    entered = getattr(graphs, "stack", None)
    return entered[-1] if entered else getattr(graphs, "_global_default_graph", None)


def _request(settings: UserSettings) -> DeviceRequest:
    visible = settings.visible
    limits = [sum(parts) for ordinal, parts in settings.limits.items() if visible is None or ordinal in visible]
    return DeviceRequest(
        gpu_count=settings.gpu_count,
        visible=visible,
        named=settings.named_gpus,
        logical=settings.named_logical,
        count=min(settings.max_count or 0, settings.gpu_count),
        limits=tuple(int(mib * MIB) for mib in limits),
        fraction=settings.fraction,
    )
