"""Caps: the most that a framework may allocate on one GPU, and why."""

from __future__ import annotations

import enum

from autogpu.frozen import Value


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
