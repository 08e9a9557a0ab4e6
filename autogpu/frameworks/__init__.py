"""The frameworks that autogpu supports. Only this file, the doctor and the hook name them outside of their packages."""

from __future__ import annotations

import importlib
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.frameworks.base import HookedFramework

# By the top-level module whose import starts it all, the class that knows the framework.
FRAMEWORKS = {
    "tensorflow": "autogpu.frameworks.tensorflow:TensorFlow",
    "jax": "autogpu.frameworks.jax:JAX",
    "torch": "autogpu.frameworks.torch:PyTorch",
}

# What pip installs if there is none of them. Python 3.8 gets TensorFlow 2.13, which has no such extra yet.
TO_INSTALL = "'tensorflow[and-cuda]'" if sys.version_info >= (3, 9) else "tensorflow"

# Their import takes less than a second and they never initialise CUDA without our hooks, so that neither the driver
# nor the policy is read before they are used.
LATE = ("jax",)


def load(module: str) -> type[HookedFramework]:
    package, _, name = FRAMEWORKS[module].partition(":")
    kind: type[HookedFramework] = getattr(importlib.import_module(package), name)
    return kind
