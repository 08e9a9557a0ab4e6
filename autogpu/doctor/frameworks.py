"""The questions of ``autogpu doctor`` to the frameworks of an environment, and its judgment of their answers."""

from __future__ import annotations

import re
from typing import Any, Mapping, Sequence

from autogpu.doctor.model import Facts, Finding, failed, passed
from autogpu.frozen import Value
from autogpu.text import counted, printable

# Python source, keyed by top-level module, that runs after the module's import. It sets ``found["build"]`` to the
# framework's build for GPUs, or to ``""`` if it has none, and ``found["gpus"]`` to the number of GPUs. It must not
# create a context on a GPU. JAX would create one to list its devices, so its number of GPUs is ``None``.
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
    """A package by which pip installs a framework for GPUs.

    Attributes:
        since: The first version of the framework for which the package exists.
        requirement: Name of the package with its extra, without a version.
        has_libraries: True if pip installs the libraries of CUDA with it.
    """

    since: tuple[int, ...]
    requirement: str
    has_libraries: bool = True


# Packages keyed by module, the latest first. Source: PyPI's metadata of these versions. Since 2.1 the package
# ``tensorflow`` serves CPUs and GPUs. PyPI has no JAX for GPUs before 0.4.23.
_CUDA_BUILDS: Mapping[str, Sequence[CudaBuild]] = {
    "tensorflow": (
        CudaBuild((2, 14), "tensorflow[and-cuda]"),
        CudaBuild((2, 1), "tensorflow", has_libraries=False),
        CudaBuild((0,), "tensorflow-gpu", has_libraries=False),
    ),
    "jax": (CudaBuild((0, 4, 23), "jax[cuda12]"),),
}
_PAGES = {
    "tensorflow": "https://www.tensorflow.org/install/source#gpu lists the CUDA and cuDNN for each TensorFlow",
    "jax": "https://docs.jax.dev/en/latest/installation.html lists the wheels for each CUDA version",
    "torch": "https://pytorch.org/get-started/locally lists the wheels for each CUDA version",
}

# A command that prints on stderr why the framework finds no GPU.
_SAYS_WHY = {
    "tensorflow": "TF_CPP_MIN_LOG_LEVEL=0 {} -c "
    "'import tensorflow as tf; tf.config.experimental.list_physical_devices()'",
    "torch": "{} -c 'import torch; torch.cuda.init()'",
}


def judge(module: str, name: str, found: Mapping[str, Any], facts: Facts) -> Finding:
    version = printable(found["version"])
    build = printable(found["build"])
    count = len(facts.inventory.devices)
    name = f"{name} {version}"
    remedy = _remedy(module, version, facts, lacks_libraries=bool(build))
    if not build and not count:
        return passed(f"{name} is built without CUDA, and there is no GPU to use")
    if not build:
        return failed(f"{name} is built without CUDA and uses no GPU", remedy)
    if count and found["gpus"] == 0 and not facts.hides_all_gpus:
        what = (
            f"{name}, {build}, lists no GPU, but the driver has {counted(count, 'GPU')}: "
            "it finds no matching CUDA libraries, or the driver is too old"
        )
        return failed(what, f"{remedy}; to see the reason: {_SAYS_WHY[module].format(facts.executable)}")
    return passed(f"{name}, {build}" + ("" if found["gpus"] is None else f", lists {counted(found['gpus'], 'GPU')}"))


def _remedy(module: str, version: str, facts: Facts, *, lacks_libraries: bool) -> str:
    """Return a command or a web page for getting a build for CUDA, or the CUDA libraries that the build lacks."""
    # Package indexes don't have the builds of other vendors, such as NVIDIA's 1.15.5+nv22.10.
    public, _, _ = version.partition("+")
    numbers = tuple(map(int, re.findall(r"\d+", public)))
    build = next((build for build in _CUDA_BUILDS.get(module, ()) if build.since <= numbers), None)
    page = _PAGES[module]
    if build is None or (lacks_libraries and not build.has_libraries):
        return page
    install = facts.pip(f"install '{build.requirement}=={public}'")
    return install if build.has_libraries else f"{install}; {page}"
