"""The eager context: the property ``Context.config``, from which TensorFlow makes it.

For the one moment in which TensorFlow computes its ConfigProto there, the script's settings are completed, so that
TensorFlow itself computes it, with its own rules and its own errors.
"""

from __future__ import annotations

import functools
import sys
from contextlib import ExitStack, contextmanager

from autogpu.frameworks.tensorflow.process import SCRIPT_CHOSE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator

    from autogpu.frameworks.tensorflow.process import Process
    from autogpu.frameworks.tensorflow.settings import Layout


def config(original: Any, process: Process) -> Any:
    """``Context.config`` with the grant filled in."""
    granter = process.granter

    @functools.wraps(original)
    def config(context: Any) -> Any:
        if granter.granted is None and (process.only_asks or _is_only_a_question(sys._getframe(1), original)):
            return original(context)
        with process.lock, ExitStack() as settings:
            with granter.guard():
                granter.prepare()
            # What the original does first; the driver is read meanwhile.
            context._initialize_physical_devices()
            layout = None
            with granter.guard():
                gpus = process.gpus_of(context)
                layout = process.settle(process.words_of(context, gpus), len(gpus))
                if layout is not None:
                    settings.enter_context(_completed(context, gpus, layout))
            proto = original(context)
            if layout is not None:
                with granter.guard():
                    process.apply(layout, proto)
            return proto

    return config


def tell_once(original: Any, process: Process, context_class: Any) -> Any:
    """``Context.ensure_initialized``, telling of the first context."""

    @functools.wraps(original)
    def ensure_initialized(context: Any) -> None:
        original(context)
        # TensorFlow calls this at every operation that is not compiled: it must be itself again after the first.
        if context_class.__dict__.get("ensure_initialized") is ensure_initialized:
            context_class.ensure_initialized = original
        process.made_context()

    return ensure_initialized


def remember_choice(original: Any) -> Any:
    """``Context.set_visible_devices``, remembering that the script chose."""

    @functools.wraps(original)
    def set_visible_devices(context: Any, devices: Any, device_type: Any = None) -> None:
        original(context, devices, device_type)
        # TensorFlow calls it too, to import what enable_eager_execution(config) was given, whatever that says.
        if device_type in (None, "GPU") and sys._getframe(1).f_code.co_name != "_import_config":
            # Choosing all GPUs leaves no trace in TensorFlow's own state, and is an explicit word all the same.
            setattr(context, SCRIPT_CHOSE, True)

    return set_visible_devices


def _is_only_a_question(caller: Any, original: Any) -> bool:
    # Getters such as tf.debugging.get_log_device_placement read Context.config as well, and a script that only asks
    # takes no GPU. Inside TensorFlow's context module only ensure_initialized makes a context from it.
    name: str = caller.f_code.co_name
    return caller.f_globals is original.__globals__ and name != "ensure_initialized"


@contextmanager
def _completed(context: Any, gpus: list[Any], layout: Layout) -> Iterator[None]:
    """The context's settings with the layout filled in where the script said nothing; afterwards as they were.

    Limits are none of them: growth and a limit at once can't be expressed in the settings, only in the ConfigProto.
    """
    visible, growths = context._visible_device_list, context._memory_growth_map
    granted = [gpus[ordinal] for ordinal in layout.ordinals]
    unset = [gpu for gpu in granted if growths[gpu] is None and layout.growth is not None]
    growths.update(dict.fromkeys(unset, layout.growth))
    context._visible_device_list = [device for device in visible if device not in gpus] + granted
    try:
        yield
    finally:
        context._visible_device_list = visible
        growths.update(dict.fromkeys(unset))
