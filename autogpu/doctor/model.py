"""The finding of a check."""

from __future__ import annotations

import enum
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Mapping, Protocol

    from autogpu.devices.model import Inventory

    # A check of what a framework says of itself.
    FrameworkCheck = Callable[[Mapping[str, Any], "Surroundings"], "Finding"]


class FindingState(enum.Enum):
    """How a check ended."""

    PASSED = "passed"
    WARNING = "warning"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"


class Finding(NamedTuple):
    """One check.

    Attributes:
        what: What was seen, as a sentence.
        remedy: What to type or change; empty where nothing needs to be done.
        name: Stable, for programs: ``hook``. The table of checks gives it.
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


if TYPE_CHECKING:

    class Surroundings(Protocol):
        """The environment that a framework is installed in."""

        @property
        def environ(self) -> Mapping[str, str]:
            """Of a script started here."""

        @property
        def executable(self) -> str:
            """The environment's Python."""

        @property
        def source(self) -> str:
            """For ``pip install``: this autogpu."""

        @property
        def inventory(self) -> Inventory:
            """The GPUs as NVML shows them."""

        @property
        def hides_all_gpus(self) -> bool:
            """``CUDA_VISIBLE_DEVICES`` hides every GPU from a script started here."""
