"""What holds for this process, read from every place where it can be said, with where each value was said."""

from autogpu.policy.merge import problems_of, resolve
from autogpu.policy.model import (
    BY_DOTTED,
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
    "BY_DOTTED",
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
    "problems_of",
    "resolve",
]
