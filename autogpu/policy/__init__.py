"""What holds for this process, read from every place where it can be said, with where each value was said."""

from autogpu.policy.merge import resolve
from autogpu.policy.model import (
    KEYS,
    LAYERS,
    SYSTEM_FILE,
    Key,
    Origin,
    Policy,
    Problem,
    Resolved,
    Setting,
)
from autogpu.policy.values import MemoryLimit

__all__ = [
    "KEYS",
    "LAYERS",
    "SYSTEM_FILE",
    "Key",
    "MemoryLimit",
    "Origin",
    "Policy",
    "Problem",
    "Resolved",
    "Setting",
    "resolve",
]
