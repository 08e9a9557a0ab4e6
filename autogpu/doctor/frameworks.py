"""``autogpu doctor`` asks the frameworks of an environment, and judges their answers."""

from __future__ import annotations

from typing import Any, Mapping

from autogpu.doctor.model import Facts, Finding, failed, passed
from autogpu.text import counted, printable

# By top-level module, Python source that puts into ``found``, after the import, ``build``, by what the framework uses
# GPUs, or ``""``, and how many ``gpus`` it lists. No GPU gets a context, so JAX is not asked for its devices.
QUESTIONS = {
    "tensorflow": """
found["build"] = "built with CUDA" if tensorflow.test.is_built_with_cuda() else ""
found["gpus"] = len(tensorflow.config.experimental.list_physical_devices("GPU"))
""",
    "torch": """
found["build"] = "built for CUDA %s" % torch.version.cuda if torch.version.cuda else ""
found["gpus"] = torch.cuda.device_count() if torch.cuda.is_available() else 0
""",
    "jax": """
import pkgutil
found["build"], found["gpus"] = "", None
try:
    import jax_plugins
    plugins = [name for _, name, _ in pkgutil.iter_modules(jax_plugins.__path__)]
    found["build"] = ", ".join("plug-in %s" % name for name in plugins if name.startswith("xla_cuda"))
except ImportError:
    pass
""",
}

# What pip installs, and the command that says on stderr why no GPU is found.
_WITH_CUDA = {"tensorflow": "tensorflow[and-cuda]", "jax": "jax[cuda12]"}
_SAYS_WHY = {
    "tensorflow": "TF_CPP_MIN_LOG_LEVEL=0 {} -c 'import tensorflow as tf; tf.config.list_physical_devices()'",
    "torch": "{} -c 'import torch; torch.cuda.init()'",
}


def judge(module: str, name: str, found: Mapping[str, Any], facts: Facts) -> Finding:
    """The framework is built for GPUs, and finds those that are there."""
    version = printable(found["version"])
    build = printable(found["build"])
    count = len(facts.inventory.devices)
    name = f"{name} {version}"
    remedy = "https://pytorch.org/get-started/locally names the wheel for this machine"
    if module in _WITH_CUDA:
        remedy = facts.pip(f"install '{_WITH_CUDA[module]}=={version}'")
    if not build and not count:
        return passed(f"{name}, without CUDA, and there is no GPU to use")
    if not build:
        return failed(f"{name} is built without CUDA and uses no GPU", remedy)
    if count and found["gpus"] == 0 and not facts.hides_all_gpus:
        what = (
            f"{name}, {build}, lists no GPU of {count}: it finds no CUDA libraries that fit, or the driver is too old"
        )
        return failed(what, f"{remedy}; {_SAYS_WHY[module].format(facts.executable)} says why")
    return passed(f"{name}, {build}" + ("" if found["gpus"] is None else f", lists {counted(found['gpus'], 'GPU')}"))
