"""JAX's error that a GPU has no memory left."""

from __future__ import annotations

from autogpu.frameworks.memory_errors import OutOfMemory, numbered, sized

_CLASSES = ("XlaRuntimeError", "JaxRuntimeError")


def out_of_memory(error: BaseException) -> OutOfMemory | None:
    """See :meth:`autogpu.frameworks.base.Framework.out_of_memory`."""
    text = str(error)
    if type(error).__name__ not in _CLASSES or not text.startswith("RESOURCE_EXHAUSTED"):
        return None
    return OutOfMemory(sized("allocat(?:e|ing) SIZE", text), numbered(r"GPU_(\d+)_bfc", text))
