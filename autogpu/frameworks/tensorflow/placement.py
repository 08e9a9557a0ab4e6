"""What all entry points of a process share: the one assignment, and the map of GPUs that TensorFlow has been given."""

from __future__ import annotations

import threading
from contextlib import contextmanager

from autogpu.frameworks.base import Usage
from autogpu.frameworks.tensorflow.proto import read_user_settings, usage_of, write_placement
from autogpu.frameworks.tensorflow.settings import DevicePlacement, UserSettings, merge_settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Iterator

    from autogpu.frameworks.base import GpuAllocator

# Set on a Context whose GPUs the script chose.
SCRIPT_CHOSE = "_autogpu_script_chose"


class PlacementResolver:
    """Resolves which GPUs TensorFlow gets, at whichever entry point it comes first."""

    def __init__(
        self, allocator: GpuAllocator, context_module: ModuleType, *, sees_choice: bool, topology_fixed: bool
    ) -> None:
        """Nothing is resolved yet.

        Args:
            context_module: TensorFlow's ``eager.context``.
            sees_choice: Whether ``set_visible_devices`` is hooked, so that a script's choice of all GPUs is known.
            topology_fixed: Whether this TensorFlow can't add a GPU later to those that it has made.
        """
        self.allocator = allocator
        self.lock = threading.RLock()
        self._context_module: Any = context_module
        self._sees_choice = sees_choice
        self._topology_fixed = topology_fixed
        self._allowed: tuple[int, ...] | None = None
        self._first: DevicePlacement | None = None
        self._thread = threading.local()

    def completed(self, proto: Any) -> Any:
        """A copy of an explicit ConfigProto that sets what the script left unset; ``None`` stands for an empty one.

        The proto itself where there is nothing to fill in.
        """
        config_proto = self._context_module.config_pb2.ConfigProto
        if not isinstance(proto, config_proto) and proto is not None:
            return proto  # TensorFlow says what is wrong with it
        result = proto
        with self.lock, self.allocator.guard():
            if proto is not None and "GPU" in proto.device_count and proto.device_count["GPU"] == 0:
                return proto
            self.allocator.prepare()
            context = self._context_module.context()
            context._initialize_physical_devices()
            gpus = self.gpus_of(context)
            copy = config_proto()
            if proto is not None:
                copy.CopyFrom(proto)
            settings = read_user_settings(copy, len(gpus)).over(self.settings_of(context, gpus))
            placement = self.resolve_placement(settings, len(gpus))
            if placement is not None:
                self.apply(placement, copy)
                result = copy
        return result

    def gpus_of(self, context: Any) -> list[Any]:
        """The CUDA GPUs that TensorFlow lists, in CUDA's order."""
        gpus = [device for device in context._physical_devices if device.device_type == "GPU"]
        if any(gpu in getattr(context, "_pluggable_devices", ()) for gpu in gpus):
            # A plug-in device may call itself GPU; neither CUDA's ordinals nor NVML know it.
            self.allocator.on_unsupported("the GPUs of this TensorFlow belong to a plug-in, not to NVIDIA's driver")
            self._allowed = ()
            return []
        return gpus

    def settings_of(self, context: Any, gpus: list[Any]) -> UserSettings:
        """What the script set through ``tf.config``, and by ``enable_eager_execution``."""
        limits = {}
        for ordinal, gpu in enumerate(gpus):
            each = tuple(logical.memory_limit for logical in context._virtual_device_map.get(gpu, ()))
            if each and None not in each:
                limits[ordinal] = each
        growths = {ordinal: context._memory_growth_map[gpu] for ordinal, gpu in enumerate(gpus)}
        settings = UserSettings(
            visible=self._chosen(context, gpus),
            growths={ordinal: growth for ordinal, growth in growths.items() if growth is not None},
            limits=limits,
            limits_exclude_growth=bool(limits),
        )
        own = getattr(context, "_config", None)
        return settings if own is None else settings.over(read_user_settings(own, len(gpus)))

    def _chosen(self, context: Any, gpus: list[Any]) -> tuple[int, ...] | None:
        visible = context._visible_device_list
        has_chosen = getattr(context, SCRIPT_CHOSE, False)
        if not self._sees_choice:
            has_chosen = any(gpu not in visible for gpu in gpus)
        return tuple(ordinal for ordinal, gpu in enumerate(gpus) if gpu in visible) if has_chosen else None

    def resolve_placement(self, settings: UserSettings, gpu_count: int) -> DevicePlacement | None:
        """What TensorFlow gets at this entry point; ``None`` where it has no GPU, or the script asks for none."""
        if settings.max_count == 0:
            return None
        if not gpu_count:
            if self._allowed is None:
                self.allocator.on_usage(Usage((), ""))
            return None
        assignment = self.allocator.assign(gpu_count, settings.visible)
        if self._allowed is None:
            chosen = tuple(range(gpu_count)) if settings.visible is None else settings.visible
            self._allowed = chosen if assignment.ordinals is None else assignment.ordinals
        return merge_settings(settings, assignment, self._allowed, self._first, self._topology_fixed)

    def apply(self, placement: DevicePlacement, proto: Any) -> None:
        """Write ``placement`` into a ConfigProto that TensorFlow is about to use, and report it."""
        write_placement(proto, placement)
        if self._first is None or len(placement.logical) > len(self._first.logical):
            self._first = placement if placement.ordinals else None
        self.allocator.on_usage(usage_of(placement, proto.gpu_options.allow_growth))

    def on_context(self) -> None:
        """An entry point has made its devices."""
        if self._first is not None:
            with self.allocator.guard():
                self.allocator.on_context()

    @property
    def in_remote_session(self) -> bool:
        """Whether this thread reads a configuration that makes no context in this process."""
        return getattr(self._thread, "in_remote_session", False)

    @contextmanager
    def remote_session(self) -> Iterator[None]:
        """While a session is made whose devices are another process's."""
        self._thread.in_remote_session = True
        try:
            yield
        finally:
            self._thread.in_remote_session = False
