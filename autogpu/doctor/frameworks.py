"""``autogpu doctor`` asks the frameworks of an environment, and judges their answers."""

from __future__ import annotations

import re
from typing import Any, Mapping, Sequence

from autogpu.doctor.model import Facts, Finding, failed, passed
from autogpu.frozen import Value
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


class CudaBuild(Value):
    """What pip installs of a framework for GPUs.

    Attributes:
        since: The first version that has it.
        requirement: Name of the package with its extra, without a version.
        has_libraries: True if it brings the libraries of CUDA.
    """

    since: tuple[int, ...]
    requirement: str
    has_libraries: bool = True


# Keyed by module, latest first. Source: the metadata of these versions at PyPI. From 2.1 on there is one TensorFlow
# for CPU and GPU; its package for GPUs ends with 2.11. JAX before 0.4.23 is not at PyPI for GPUs.
_CUDA_BUILDS: Mapping[str, Sequence[CudaBuild]] = {
    "tensorflow": (
        CudaBuild((2, 14), "tensorflow[and-cuda]"),
        CudaBuild((2, 1), "tensorflow", has_libraries=False),
        CudaBuild((0,), "tensorflow-gpu", has_libraries=False),
    ),
    "jax": (CudaBuild((0, 4, 23), "jax[cuda12]"),),
}
_PAGES = {
    "tensorflow": "https://www.tensorflow.org/install/source#gpu names the CUDA and the cuDNN to install for it",
    "jax": "https://docs.jax.dev/en/latest/installation.html names the wheel for this machine",
    "torch": "https://pytorch.org/get-started/locally names the wheel for this machine",
}

# The command that says on stderr why no GPU is found.
_SAYS_WHY = {
    "tensorflow": "TF_CPP_MIN_LOG_LEVEL=0 {} -c "
    "'import tensorflow as tf; tf.config.experimental.list_physical_devices()'",
    "torch": "{} -c 'import torch; torch.cuda.init()'",
}


def judge(module: str, name: str, found: Mapping[str, Any], facts: Facts) -> Finding:
    """The framework is built for GPUs, and finds those that are there."""
    version = printable(found["version"])
    build = printable(found["build"])
    count = len(facts.inventory.devices)
    name = f"{name} {version}"
    remedy = _remedy(module, version, facts, lacks_libraries=bool(build))
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


def _remedy(module: str, version: str, facts: Facts, *, lacks_libraries: bool) -> str:
    """Say how to get a build for CUDA, or, if this is one, its libraries."""
    public, _, _ = version.partition("+")  # no index has what NVIDIA and others add, as in 1.15.5+nv22.10
    numbers = tuple(map(int, re.findall(r"\d+", public)))
    build = next((build for build in _CUDA_BUILDS.get(module, ()) if build.since <= numbers), None)
    page = _PAGES[module]
    if build is None or (lacks_libraries and not build.has_libraries):
        return page
    install = facts.pip(f"install '{build.requirement}=={public}'")
    return install if build.has_libraries else f"{install}; {page}"
