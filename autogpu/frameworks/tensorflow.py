"""Fill what a script left unset into the configuration that TensorFlow makes its context from.

No tf.config setter is ever called: a setter makes the script's own, ordinary calls raise later. Instead the property
``Context.config`` is replaced. TensorFlow reads it when it makes the context, and for that one moment the script's
settings are completed, so that TensorFlow itself computes the ConfigProto, with its own rules and its own errors.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from contextlib import ExitStack, contextmanager

from autogpu.frameworks.model import Grant, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator, Mapping

    from autogpu.frameworks.model import Granter

_CONTEXT_MODULE = "tensorflow.python.eager.context"
_OURS = "_autogpu_replaced"
MIB = 1 << 20
_SCRIPT_CHOSE = "_autogpu_script_chose"

# Read by TensorFlow's C++ when it makes the context; it beats the ConfigProto.
_FORCE_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"


def put_seams(granter: Granter) -> bool:
    """Replace the entry points of an imported TensorFlow; ``False`` if this TensorFlow lacks them.

    Twice is as good as once. Nothing is initialised and no GPU is touched.
    """
    context: Any = getattr(sys.modules.get(_CONTEXT_MODULE), "Context", None)
    config = getattr(context, "__dict__", {}).get("config")
    set_visible_devices = getattr(context, "set_visible_devices", None)
    if not isinstance(config, property) or config.fget is None or set_visible_devices is None:
        return False
    if not all(hasattr(context, name) for name in ("_initialize_physical_devices", "ensure_initialized")):
        return False
    if getattr(config.fget, _OURS, False):
        return True
    context.config = property(_config(config.fget, granter), doc=config.__doc__)
    context.set_visible_devices = _remember_choice(set_visible_devices)
    context.ensure_initialized = _tell_once(context, context.ensure_initialized, granter)
    return True


def fallback(environ: Mapping[str, str], growth: bool) -> dict[str, str]:
    """What to write into the environment where a TensorFlow of the future lacks the seams."""
    return {_FORCE_GROWTH: "true"} if growth and _FORCE_GROWTH not in environ else {}


def _config(original: Any, granter: Granter) -> Any:
    one_at_a_time = threading.RLock()

    @functools.wraps(original)
    def config(context: Any) -> Any:
        if _is_only_a_question(sys._getframe(1)) and granter.granted is None:
            return original(context)
        with one_at_a_time, ExitStack() as settings:
            with granter.guard():
                granter.prepare()
            # What the original does first; the driver is read meanwhile.
            context._initialize_physical_devices()
            with granter.guard():
                settings.enter_context(_completed(context, granter))
            proto = original(context)
            with granter.guard():
                _cap(proto.gpu_options, granter.granted)
                granter.took(_usage(context, proto.gpu_options, proto.device_count["GPU"]))
            return proto

    setattr(config, _OURS, True)
    return config


def _tell_once(context_class: Any, original: Any, granter: Granter) -> Any:
    @functools.wraps(original)
    def ensure_initialized(context: Any) -> None:
        original(context)
        # TensorFlow calls this at every operation that is not compiled: it must be itself again after the first.
        context_class.ensure_initialized = original
        with granter.guard():
            granter.made_context()

    return ensure_initialized


def _is_only_a_question(caller: Any) -> bool:
    # Getters such as tf.debugging.get_log_device_placement read Context.config as well, and a script that only asks
    # takes no GPU. Inside TensorFlow's context module only ensure_initialized makes a context from it.
    name: str = caller.f_code.co_name
    return caller.f_globals.get("__name__") == _CONTEXT_MODULE and name != "ensure_initialized"


def _remember_choice(original: Any) -> Any:
    @functools.wraps(original)
    def set_visible_devices(context: Any, devices: Any, device_type: Any = None) -> None:
        original(context, devices, device_type)
        if device_type in (None, "GPU"):
            # Choosing all GPUs leaves no trace in TensorFlow's own state, and is an explicit word all the same.
            setattr(context, _SCRIPT_CHOSE, True)

    return set_visible_devices


@contextmanager
def _completed(context: Any, granter: Granter) -> Iterator[None]:
    """The context's settings with the grant filled in where the script said nothing; afterwards as they were."""
    gpus = _cuda_gpus(context)
    if not gpus:
        yield
        return
    visible = context._visible_device_list
    chosen = None
    if getattr(context, _SCRIPT_CHOSE, False):
        chosen = tuple(ordinal for ordinal, gpu in enumerate(gpus) if gpu in visible)
    grant = granter.grant(len(gpus), chosen)
    granted = [gpu for ordinal, gpu in enumerate(gpus) if _is_granted(ordinal, gpu, grant, visible)]
    with _filled(context._memory_growth_map, _growths(context, gpus, granted, grant)), _filled(
        context._virtual_device_map, _virtual_devices(context, gpus, granted)
    ):
        context._visible_device_list = [d for d in visible if d not in gpus or d in granted]
        try:
            yield
        finally:
            context._visible_device_list = visible


def _cuda_gpus(context: Any) -> list[Any]:
    # A plug-in device may call itself GPU; neither CUDA's ordinals nor NVML know it.
    gpus = [device for device in context._physical_devices if device.device_type == "GPU"]
    return [] if any(gpu in context._pluggable_devices for gpu in gpus) else gpus


def _is_granted(ordinal: int, gpu: Any, grant: Grant, visible: Any) -> bool:
    return gpu in visible and (grant.ordinals is None or ordinal in grant.ordinals)


def _growths(context: Any, gpus: list[Any], granted: list[Any], grant: Grant) -> dict[Any, Any]:
    """The growth of each granted GPU that the script said nothing about.

    What a script says for ``gpus[0]`` alone it means for the GPU it gets; TensorFlow would refuse to run with two
    GPUs that differ.
    """
    said = {context._memory_growth_map[gpu] for gpu in gpus} - {None}
    growth = said.pop() if len(said) == 1 else grant.growth if not said else None
    return {gpu: growth for gpu in granted if context._memory_growth_map[gpu] is None and growth is not None}


def _virtual_devices(context: Any, gpus: list[Any], granted: list[Any]) -> dict[Any, Any]:
    """A memory limit that the script set for one GPU, for the GPU it gets."""
    limits = context._virtual_device_map
    configured = [gpu for gpu in gpus if gpu in limits]
    if len(configured) != 1 or not granted or configured[0] in granted:
        return {}
    return {granted[0]: limits[configured[0]]}


@contextmanager
def _filled(settings: dict[Any, Any], values: dict[Any, Any]) -> Iterator[None]:
    before = {key: settings[key] for key in values if key in settings}
    settings.update(values)
    try:
        yield
    finally:
        for key in values:
            del settings[key]
        settings.update(before)


def _cap(options: Any, grant: Grant | None) -> None:
    """Cap what TensorFlow allocates on each GPU, unless the script itself has said how much.

    The ConfigProto can hold growth and a limit at once, which TensorFlow's Python API refuses to express.
    """
    if grant is None or not grant.caps or not options.visible_device_list:
        return
    if options.experimental.virtual_devices or options.per_process_gpu_memory_fraction:
        return
    for ordinal in map(int, options.visible_device_list.split(",")):
        entry = options.experimental.virtual_devices.add()
        if ordinal in grant.caps:
            entry.memory_limit_mb.append(grant.caps[ordinal] / MIB)


def _usage(context: Any, options: Any, gpu_count: int) -> Usage:
    """What the finished ConfigProto asks the driver for: the script's word and the policy's, merged."""
    if not _cuda_gpus(context):
        return Usage((), "")
    listed = options.visible_device_list
    ordinals = tuple(int(ordinal) for ordinal in listed.split(",")) if listed and gpu_count else ()
    limits_mb = [limit for gpu in options.experimental.virtual_devices for limit in gpu.memory_limit_mb]
    if limits_mb:
        memory = "limited to {} MiB".format(" + ".join(f"{limit:.0f}" for limit in limits_mb))
        memory += ", allocated as needed" if options.allow_growth else ""
    elif options.per_process_gpu_memory_fraction:
        memory = f"limited to {options.per_process_gpu_memory_fraction:.0%} of each GPU"
    else:
        memory = "allocated as needed" if options.allow_growth else "allocated whole at once"
    forced = os.environ.get(_FORCE_GROWTH)
    if forced in ("true", "false") and not limits_mb:
        memory = "allocated as needed" if forced == "true" else "allocated whole at once"
    return Usage(ordinals, memory)
