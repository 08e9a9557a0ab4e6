"""Where TensorFlow is hooked into: its classes and modules as they are loaded, each once."""

from __future__ import annotations

import sys

from autogpu.frameworks.model import Seams
from autogpu.frameworks.tensorflow import context, doors
from autogpu.frameworks.tensorflow.process import Process
from autogpu.frameworks.tensorflow.proto import FORCE_GROWTH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Mapping

    from autogpu.frameworks.model import Granter

_OURS = "_autogpu_replaced"

# TensorFlow 1.15 keeps its code in tensorflow_core; some of it is loaded under that name alone.
_ROOTS = ("tensorflow", "tensorflow_core")

_PLAIN = "take what they would without autogpu"

# Each with what is not in force where a version lacks it.
_DOORS: tuple[tuple[str, str, str, Callable[[Any, Process], Any], str], ...] = (
    ("client.session", "BaseSession", "__init__", doors.session, f"sessions with a ConfigProto {_PLAIN}"),
    ("client.device_lib", "", "list_local_devices", doors.list_local_devices, f"callers {_PLAIN}"),
    ("training.server_lib", "Server", "__init__", doors.server, f"servers {_PLAIN}"),
    ("distribute.mirrored_strategy", "MirroredExtended", "__init__", doors.mirrored, "nobody counts its replicas"),
)

_seams = Seams()


def seams() -> Seams:
    """What the last :func:`put_seams` of this process found."""
    return _seams


def put_seams(granter: Granter) -> Seams:
    """Replace the entry points of an imported TensorFlow, as far as it has them.

    Twice is as good as once. Nothing is initialised and no GPU is touched.
    """
    global _seams
    _seams = _put(granter)
    return _seams


def fallback(environ: Mapping[str, str], growth: bool) -> dict[str, str]:
    """What to write into the environment where a TensorFlow of the future lacks the seams."""
    return {FORCE_GROWTH: "true"} if growth and FORCE_GROWTH not in environ else {}


def _put(granter: Granter) -> Seams:
    version = str(getattr(sys.modules.get("tensorflow"), "__version__", "?"))
    if _is_built_with_rocm():
        return Seams(version, obstacle="this TensorFlow is built for ROCm, and autogpu knows NVIDIA's GPUs alone")
    module: Any = _module("eager.context")
    own: Any = getattr(module, "Context", None)
    config: Any = getattr(own, "__dict__", {}).get("config")
    is_known = hasattr(own, "_initialize_physical_devices") and hasattr(module, "config_pb2")
    if not is_known or not isinstance(config, property) or config.fget is None:
        effect = "autogpu chooses at the import, and claims nothing"
        return Seams(version, missing={"Context.config": effect})
    if getattr(config.fget, _OURS, False):
        return _seams
    found, missing = ["Context.config"], {}
    process = Process(
        granter,
        module,
        hears_choice=hasattr(own, "set_visible_devices"),
        has_xla_devices=version.startswith(("1.", "2.0.", "2.1.", "2.2.", "2.3.")),
    )
    own.config = property(_marked(context.config(config.fget, process)), doc=config.__doc__)
    if hasattr(own, "set_visible_devices"):
        own.set_visible_devices = context.remember_choice(own.set_visible_devices)
        found.append("Context.set_visible_devices")
    else:
        missing["Context.set_visible_devices"] = "a script that makes every GPU visible gets the policy's choice"
    if hasattr(own, "ensure_initialized"):
        own.ensure_initialized = context.tell_once(own.ensure_initialized, process, own)
        found.append("Context.ensure_initialized")
    else:
        missing["Context.ensure_initialized"] = "the lease says what was granted, not what the driver shows"
    for path, class_name, function, door, effect in _DOORS:
        holder: Any = _module(path)
        holder = getattr(holder, class_name, None) if class_name else holder
        name = f"{class_name or path.split('.')[-1]}.{function}"
        original = getattr(holder, "__dict__", {}).get(function)
        if callable(original):
            setattr(holder, function, _marked(door(original, process)))
            found.append(name)
        else:
            missing[name] = effect
    return Seams(version, tuple(found), missing, essential=True)


def _module(path: str) -> Any:
    for root in _ROOTS:
        if f"{root}.python.{path}" in sys.modules:
            return sys.modules[f"{root}.python.{path}"]
    return None


def _is_built_with_rocm() -> bool:
    build: Any = _module("platform.build_info")
    info = getattr(build, "build_info", None)
    return bool(info.get("is_rocm_build") if isinstance(info, dict) else getattr(build, "is_rocm_build", False))


def _marked(function: Any) -> Any:
    setattr(function, _OURS, True)
    return function
