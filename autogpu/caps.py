"""Caps: the most that a framework may allocate on one GPU, and why."""

from __future__ import annotations

import enum

from autogpu.frozen import Value

# Memory of a CUDA context and its libraries, in addition to the framework's own memory. Source: 300 to 600 MiB in
# reports on compute capability 6 to 9.
CONTEXT_BYTES = 512 << 20


class CapCause(enum.Enum):
    """Why a framework may allocate no more on a GPU. Leases contain these values."""

    SHARED = "share"  # other jobs are on the GPU
    RANKS = "ranks"  # ranks of the same job share the GPU
    LIMIT = "limit"  # the policy's memory.limit
    SPLIT = "split"  # the GPU is split into logical GPUs
    SCRIPT = "script"  # the script's own limit
    DEFAULT = "default"  # the framework's own default limit
    GRANT = "grant"  # an engine granted a part of the GPU
    WHOLE = "whole"  # the memory of the whole GPU


class Cap(Value):
    """The most bytes that a framework may allocate on one GPU, and why.

    Attributes:
        whose: Name of the engine or the framework behind the cause; empty for the other causes.
    """

    bytes: int
    cause: CapCause
    whose: str = ""


def lower_cap(first: Cap, second: Cap) -> Cap:
    return second if second.bytes < first.bytes else first


def within_context(claim_bytes: int) -> int:
    """Return the part of a claim that the framework may allocate: the CUDA context has to fit in, too."""
    return max(claim_bytes - CONTEXT_BYTES, claim_bytes // 2)
