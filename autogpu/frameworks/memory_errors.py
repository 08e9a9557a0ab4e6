"""A framework's own error that a GPU has no memory left, and what its text tells."""

from __future__ import annotations

import re

from autogpu.frozen import frozen

_UNITS = {"bytes": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = r"([\d.]+) ?(bytes|[KMGT]iB|B)\b"


@frozen
class OutOfMemory:
    """The numbers in the error.

    Attributes:
        asked_bytes: What could not be allocated; 0 if it does not say.
        ordinal: Of the GPU, as the framework counts; 0 if it does not say.
        allowed_bytes: The most that the framework was allowed there; 0 if it does not say.
    """

    asked_bytes: int = 0
    ordinal: int = 0
    allowed_bytes: int = 0


def sized(pattern: str, text: str) -> int:
    """The bytes that follow ``pattern`` in a text, such as ``1.00GiB`` or ``2048 bytes``; 0 where none do."""
    found = re.search(pattern.replace("SIZE", _SIZE), text)
    return int(float(found.group(1)) * _UNITS[found.group(2)]) if found else 0


def numbered(pattern: str, text: str) -> int:
    """The number in a text at the group of ``pattern``; 0 where there is none."""
    found = re.search(pattern, text)
    return int(found.group(1)) if found else 0
