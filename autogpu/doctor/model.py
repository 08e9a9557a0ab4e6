"""The finding of a check."""

from __future__ import annotations

import enum
from functools import partial
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


passed = partial(Finding, FindingState.PASSED)
failed = partial(Finding, FindingState.FAILED)
not_applicable = partial(Finding, FindingState.NOT_APPLICABLE)

# It may be well: it could not be seen in time, say.
warned = partial(Finding, FindingState.WARNING)
