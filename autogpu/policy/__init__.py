"""The settings of a process, read from every layer, each with where it was set."""

from autogpu.policy.kinds import MemoryLimit
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
from autogpu.policy.sources import working_directory

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
    "working_directory",
]
