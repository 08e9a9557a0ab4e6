"""The frameworks that autogpu supports. Only this file, the doctor and the hook name them outside of their packages."""

from __future__ import annotations

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.frameworks.base import HookedFramework

# By the top-level module whose import starts it all, the class that knows the framework.
FRAMEWORKS = {
    "tensorflow": "autogpu.frameworks.tensorflow:TensorFlow",
    "jax": "autogpu.frameworks.jax:JAX",
    "torch": "autogpu.frameworks.torch:PyTorch",
}

# What pip installs where there is none of them.
TO_INSTALL = "'tensorflow[and-cuda]'"

# Their import takes less than a second and they never initialise CUDA without our hooks, so that neither the driver
# nor the policy is read before they are used.
LATE = ("jax",)


def load(module: str) -> type[HookedFramework]:
    package, _, name = FRAMEWORKS[module].partition(":")
    kind: type[HookedFramework] = getattr(importlib.import_module(package), name)
    return kind
