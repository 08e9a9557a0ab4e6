"""The frameworks that autogpu knows: only this file, diagnosis.py and the hook name them outside of their packages."""

from __future__ import annotations

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.frameworks.base import Framework

# By the top-level module whose import starts it all, the package that knows the framework.
FRAMEWORKS = {
    "tensorflow": "autogpu.frameworks.tensorflow",
    "jax": "autogpu.frameworks.jax",
    "torch": "autogpu.frameworks.torch",
}

# What pip installs where there is none of them.
TO_INSTALL = "'tensorflow[and-cuda]'"

# Their import takes less than a second and they never initialise CUDA without our hooks, so that neither the driver
# nor the policy is read before they are used.
LATE = ("jax",)


def load(module: str) -> Framework:
    """The framework whose top-level module that is."""
    return importlib.import_module(FRAMEWORKS[module])
