"""The frameworks that autogpu supports.

Outside of the frameworks' own packages, only this module, the import hook, the doctor and its advice in
``autogpu.reporting.installation`` refer to a framework by name.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.frameworks.base import HookedFramework

# Classes of the supported frameworks, keyed by the top-level module that a script imports.
FRAMEWORKS = {
    "tensorflow": "autogpu.frameworks.tensorflow:TensorFlow",
    "jax": "autogpu.frameworks.jax:JAX",
    "torch": "autogpu.frameworks.torch:PyTorch",
}

# For these frameworks autogpu reads the driver and the policy only at their first use: their import takes less than a
# second, and they never initialise CUDA without calling a hook.
LATE = ("jax",)


def load(module: str) -> type[HookedFramework]:
    package, _, name = FRAMEWORKS[module].partition(":")
    kind: type[HookedFramework] = getattr(importlib.import_module(package), name)
    return kind
