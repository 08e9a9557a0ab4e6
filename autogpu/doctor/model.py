"""What a check finds."""

from __future__ import annotations

import enum
from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, Protocol

    from autogpu.devices.model import Inventory


class FindingState(enum.Enum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True)
class Finding:
    """One check.

    Attributes:
        name: Stable, for programs: ``hook``.
        what: What was seen, as a sentence.
        remedy: What to type or change; empty where nothing needs to be done.
    """

    name: str
    state: FindingState
    what: str
    remedy: str = ""


def passed(name: str, what: str) -> Finding:
    """All is well."""
    return Finding(name, FindingState.PASSED, what)


def failed(name: str, what: str, remedy: str) -> Finding:
    """Something has to be done."""
    return Finding(name, FindingState.FAILED, what, remedy)


def not_applicable(name: str, what: str) -> Finding:
    """There is nothing to check."""
    return Finding(name, FindingState.NOT_APPLICABLE, what)


if TYPE_CHECKING:

    class Surroundings(Protocol):
        """What a framework's diagnosis is told of the environment that it is installed in."""

        @property
        def environ(self) -> Mapping[str, str]:
            """Of a script started here."""

        @property
        def executable(self) -> str:
            """The environment's Python."""

        @property
        def source(self) -> str:
            """What pip installs this autogpu from."""

        @property
        def inventory(self) -> Inventory:
            """What NVML shows."""

        @property
        def hides_all_gpus(self) -> bool:
            """Whether ``CUDA_VISIBLE_DEVICES`` hides every GPU from a script started here."""
