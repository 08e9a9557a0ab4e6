"""The eager context: the property ``Context.config``, from which TensorFlow makes it.

For the one moment in which TensorFlow computes its ConfigProto there, the script's settings are completed, so that
TensorFlow itself computes it, with its own rules and its own errors.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
from typing import Any, Callable, Iterator, Mapping

from autogpu.frameworks.base import put_back
from autogpu.frameworks.tensorflow.names import named_gpu
from autogpu.frameworks.tensorflow.placement import SCRIPT_CHOSE
from autogpu.frameworks.tensorflow.settings import DevicePlacement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.frameworks.tensorflow.placement import PlacementResolver


def config(original: Any, resolver: PlacementResolver, context: Any) -> Any:
    """Fill the assignment into ``Context.config``."""
    allocator = resolver.allocator
    if allocator.assignment is None and _is_only_a_question(sys._getframe(2), original):
        return original(context)
    with resolver.lock, ExitStack() as settings:
        with allocator.guard():
            allocator.prepare()
        # As the original does first; the driver is read meanwhile.
        context._initialize_physical_devices()
        placement = None
        with allocator.guard():
            gpus = resolver.gpus_of(context)
            placement = resolver.resolve_placement(resolver.settings_of(context, gpus), len(gpus))
            if placement is not None:
                settings.enter_context(_completed(context, gpus, placement))
        proto = original(context)
        if placement is not None:
            with allocator.guard():
                resolver.apply(placement, proto)
        return proto


def ensure_initialized(original: Any, resolver: PlacementResolver, context: Any) -> None:
    """Tell of the first context, after ``Context.ensure_initialized``."""
    original(context)
    # TensorFlow calls this at every operation that is not compiled: it must be itself again after the first.
    put_back(type(context), "ensure_initialized", original)
    resolver.on_context()


def initialize_physical_devices(
    original: Any, resolver: PlacementResolver, context: Any, *args: Any, **kwargs: Any
) -> None:
    """Begin before ``Context._initialize_physical_devices``, the first step of every listing, which starts CUDA."""
    if context._physical_devices is None:
        with resolver.allocator.guard():
            resolver.allocator.on_listing()
    original(context, *args, **kwargs)


def set_visible_devices(
    original: Any, resolver: PlacementResolver, context: Any, devices: Any, device_type: Any = None
) -> None:
    """Remember that the script chose by ``Context.set_visible_devices``."""
    original(context, devices, device_type)
    # TensorFlow calls it too, to import what enable_eager_execution(config) was given, whatever that says.
    if device_type in (None, "GPU") and sys._getframe(2).f_code.co_name != "_import_config":
        # Choosing all GPUs leaves no trace in TensorFlow's own state, and is an explicit choice all the same.
        setattr(context, SCRIPT_CHOSE, True)


def soft_device_placement(original: Any, resolver: PlacementResolver, context: Any, enable: Any) -> None:
    """Set ``Context.soft_device_placement``.

    Turned off when TensorFlow has its GPUs, it would let a name raise of which there would be a GPU without autogpu.
    Until then every such name is made to exist instead.
    """
    original(context, enable or resolver.lacks(resolver.gpu_count - 1))


# The answers about the memory of a GPU on which the process has allocated nothing.
UNUSED_MEMORY: Mapping[str, Callable[[], Any]] = {
    "get_memory_info": lambda: {"current": 0, "peak": 0},
    "get_memory_usage": lambda: 0,
    "get_total_memory_usage": lambda: 0,
    "reset_memory_stats": lambda: None,
}


def memory_reading(
    original: Any, resolver: PlacementResolver, context: Any, device: Any, *, unused: Callable[[], Any]
) -> Any:
    """Read a GPU's memory by its name; ``unused`` answers for one that this process does not have."""
    context.ensure_initialized()  # as the original does first: only then is it known which GPUs there are
    number = named_gpu(device)
    if number is not None and resolver.lacks(number):
        return unused()
    return original(context, device)


def _is_only_a_question(caller: Any, original: Any) -> bool:
    # Getters such as tf.debugging.get_log_device_placement read Context.config as well, and a script that only asks
    # takes no GPU. Inside TensorFlow's context module only ensure_initialized makes a context from it.
    name: str = caller.f_code.co_name
    return caller.f_globals is original.__globals__ and name != "ensure_initialized"


@contextmanager
def _completed(context: Any, gpus: list[Any], placement: DevicePlacement) -> Iterator[None]:
    """The context's settings with the placement filled in where the script set nothing; afterwards as they were.

    Limits are none of them: growth and a limit at once can't be expressed in the settings, only in the ConfigProto.
    """
    visible, growths = context._visible_device_list, context._memory_growth_map
    placed = [gpus[ordinal] for ordinal in placement.ordinals]
    unset = [gpu for gpu in placed if growths[gpu] is None and placement.growth is not None]
    growths.update(dict.fromkeys(unset, placement.growth))
    context._visible_device_list = [device for device in visible if device not in gpus] + placed
    try:
        yield
    finally:
        context._visible_device_list = visible
        growths.update(dict.fromkeys(unset))
