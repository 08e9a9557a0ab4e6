"""PyTorch's error that a GPU has no memory left."""

from __future__ import annotations

from autogpu.frameworks.memory_errors import OutOfMemory, numbered, sized

# The second is the driver's, for a context or a library of CUDA.
_TEXTS = ("CUDA out of memory", "CUDA error: out of memory")


def out_of_memory(error: BaseException) -> OutOfMemory | None:
    """See :meth:`autogpu.frameworks.base.Framework.out_of_memory`."""
    text = str(error)
    # A RuntimeError up to 1.12, and a class of its own under it since.
    if not isinstance(error, RuntimeError) or not text.startswith(_TEXTS):
        return None
    return OutOfMemory(
        sized("Tried to allocate SIZE", text), numbered(r"GPU (\d+)[ ;]", text), sized("SIZE allowed", text)
    )
