"""What all doors of a process share: the one grant, and the map of GPUs that TensorFlow has been given."""

from __future__ import annotations

import threading
from contextlib import contextmanager

from autogpu.frameworks.model import Usage
from autogpu.frameworks.tensorflow import proto as protos
from autogpu.frameworks.tensorflow.settings import Layout, Said, settled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Iterator

    from autogpu.frameworks.model import Granter

# Set on a Context whose GPUs the script chose.
SCRIPT_CHOSE = "_autogpu_script_chose"


class Process:
    """A process on its way to its GPUs, whichever door it comes through first."""

    def __init__(
        self, granter: Granter, context_module: ModuleType, *, hears_choice: bool, has_xla_devices: bool
    ) -> None:
        self.granter = granter
        self.lock = threading.RLock()
        self._context_module: Any = context_module
        self._hears_choice = hears_choice
        # Its devices XLA_GPU:0 and so on are counted once per process, from the first visible_device_list on.
        self._is_final = has_xla_devices
        self._frame: tuple[int, ...] | None = None
        self._made: Layout | None = None
        self._thread = threading.local()

    def completed(self, proto: Any) -> Any:
        """A copy of an explicit ConfigProto that says what the script left unset; ``None`` stands for an empty one.

        The proto itself where there is nothing to fill in.
        """
        config_proto = self._context_module.config_pb2.ConfigProto
        if not isinstance(proto, config_proto) and proto is not None:
            return proto  # TensorFlow says what is wrong with it
        result = proto
        with self.lock, self.granter.guard():
            if proto is not None and "GPU" in proto.device_count and proto.device_count["GPU"] == 0:
                return proto
            self.granter.prepare()
            context = self._context_module.context()
            context._initialize_physical_devices()
            gpus = self.gpus_of(context)
            copy = config_proto()
            if proto is not None:
                copy.CopyFrom(proto)
            layout = self.settle(protos.words(copy, len(gpus)).over(self.words_of(context, gpus)), len(gpus))
            if layout is not None:
                self.apply(layout, copy)
                result = copy
        return result

    def gpus_of(self, context: Any) -> list[Any]:
        """The CUDA GPUs that TensorFlow lists, in CUDA's order."""
        gpus = [device for device in context._physical_devices if device.device_type == "GPU"]
        if any(gpu in getattr(context, "_pluggable_devices", ()) for gpu in gpus):
            # A plug-in device may call itself GPU; neither CUDA's ordinals nor NVML know it.
            self.granter.stood_aside("the GPUs of this TensorFlow are a plug-in's, and autogpu knows NVIDIA's alone")
            self._frame = ()
            return []
        return gpus

    def words_of(self, context: Any, gpus: list[Any]) -> Said:
        """What the script said through ``tf.config``, and to ``enable_eager_execution``."""
        visible = context._visible_device_list
        chose = getattr(context, SCRIPT_CHOSE, False)
        if not self._hears_choice:
            chose = any(gpu not in visible for gpu in gpus)
        limits = {}
        for ordinal, gpu in enumerate(gpus):
            each = tuple(logical.memory_limit for logical in context._virtual_device_map.get(gpu, ()))
            if each and None not in each:
                limits[ordinal] = each
        growths = {ordinal: context._memory_growth_map[gpu] for ordinal, gpu in enumerate(gpus)}
        said = Said(
            visible=tuple(ordinal for ordinal, gpu in enumerate(gpus) if gpu in visible) if chose else None,
            growths={ordinal: growth for ordinal, growth in growths.items() if growth is not None},
            limits=limits,
            limits_exclude_growth=bool(limits),
        )
        own = getattr(context, "_config", None)
        return said if own is None else said.over(protos.words(own, len(gpus)))

    def settle(self, said: Said, gpu_count: int) -> Layout | None:
        """What TensorFlow gets at this door; ``None`` where it has no GPU, or the script asks for none."""
        if said.at_most == 0:
            return None
        if not gpu_count:
            if self._frame is None:
                self.granter.took(Usage((), ""))
            return None
        grant = self.granter.grant(gpu_count, said.visible)
        if self._frame is None:
            chosen = tuple(range(gpu_count)) if said.visible is None else said.visible
            self._frame = chosen if grant.ordinals is None else grant.ordinals
        return settled(said, grant, self._frame, self._made, self._is_final)

    def apply(self, layout: Layout, proto: Any) -> None:
        """Write ``layout`` into a ConfigProto that TensorFlow is about to use, and report it."""
        protos.write(proto, layout)
        if self._made is None or len(layout.logical) > len(self._made.logical):
            self._made = layout if layout.ordinals else None
        self.granter.took(protos.usage(layout, proto.gpu_options.allow_growth))

    def made_context(self) -> None:
        """A door has made its devices."""
        if self._made is not None:
            with self.granter.guard():
                self.granter.made_context()

    @property
    def only_asks(self) -> bool:
        """Whether this thread reads a configuration that makes no context in this process."""
        return getattr(self._thread, "only_asks", False)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """While a session is made whose devices are another process's."""
        self._thread.only_asks = True
        try:
            yield
        finally:
            self._thread.only_asks = False
