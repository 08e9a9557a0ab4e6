"""The finding of a check."""

from __future__ import annotations

import enum
from typing import NamedTuple


class FindingState(enum.Enum):
    """How a check ended."""

    PASSED = "passed"
    WARNING = "warning"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"


class Finding(NamedTuple):
    """One check saw ``what``, a sentence; the ``remedy`` is what to type or change, if anything has to be done.

    The table of checks gives it its ``name``, which is stable, for programs.
    """

    state: FindingState
    what: str
    remedy: str = ""
    name: str = ""


def passed(what: str) -> Finding:
    """All is well."""
    return Finding(FindingState.PASSED, what)


def warned(what: str, remedy: str) -> Finding:
    """It may be well: it could not be seen in time, say."""
    return Finding(FindingState.WARNING, what, remedy)


def failed(what: str, remedy: str) -> Finding:
    """Something has to be done."""
    return Finding(FindingState.FAILED, what, remedy)


def not_applicable(what: str) -> Finding:
    """There is nothing to check."""
    return Finding(FindingState.NOT_APPLICABLE, what)
