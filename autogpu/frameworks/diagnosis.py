"""What ``autogpu doctor`` says of every framework alike."""

from __future__ import annotations

from autogpu.doctor.model import failed, not_applicable, passed
from autogpu.reporting.text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping

    from autogpu.doctor.model import Finding, Surroundings


def hooks_finding(
    row: str, framework: str, version: str, facts: Surroundings, *, obstacle: str = "", missing: Mapping[str, str]
) -> Finding:
    """Whether autogpu finds what it hooks into.

    Args:
        row: The finding's name.
        framework: Its name.
        version: Its version.
        facts: About the machine.
        obstacle: Why it is not touched at all; ``""`` if it is.
        missing: What it lacks, with what is not in force without it.
    """
    if obstacle:
        return not_applicable(row, printable(obstacle))
    if not missing:
        return passed(row, "autogpu finds all that it hooks into")
    remedy = f"{facts.executable} -m pip install --upgrade {facts.source}"
    lacks = "; ".join(f"{name}: {effect}" for name, effect in missing.items())
    return failed(row, f"{framework} {version} lacks {printable(lacks)}", remedy)
