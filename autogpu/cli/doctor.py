"""``autogpu doctor``: what is wrong, and what to do about it."""

from __future__ import annotations

import json
import os
import sys

import click
from rich.console import Console
from rich.text import Text

from autogpu.cli.screen import BAD, GOOD, show
from autogpu.doctor.checks import examine
from autogpu.doctor.facts import gather
from autogpu.doctor.model import Finding, FindingState
from autogpu.reporting.text import counted

VERSION = 1
_COLUMN = 20

_MARKS = {
    FindingState.PASSED: ("ok", GOOD),
    FindingState.WARNING: ("warn", "bold"),
    FindingState.FAILED: ("FAILED", f"bold {BAD}"),
    FindingState.NOT_APPLICABLE: ("-", "dim"),
}


@click.command(
    epilog="""Exit status: 0 if nothing failed, else 1.

\b
Examples:
  autogpu doctor
  autogpu doctor --json"""
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(as_json: bool) -> int:
    """Look for what keeps a script in this environment and folder from its GPU, or from autogpu.

    Takes some seconds, because the frameworks are imported. Nothing is claimed, and no context is made on a GPU.
    """
    facts = gather(os.environ, _progress)
    _progress("")
    findings = examine(facts)
    failed = [finding for finding in findings if finding.state is FindingState.FAILED]
    has_warning = any(finding.state is FindingState.WARNING for finding in findings)
    if as_json:
        values = [_as_values(finding) for finding in findings]
        click.echo(json.dumps({"version": VERSION, "findings": values}, indent=2))
    else:
        console = Console(highlight=False)
        for finding in findings:
            _print(console, finding)
        all_is_well = "No check failed." if has_warning else "No problem was found."
        click.echo(f"{counted(len(failed), 'check')} failed." if failed else all_is_well)
    return 1 if failed else 0


def _as_values(finding: Finding) -> dict[str, object]:
    values = {"check": finding.name, "state": finding.state.value, "what": finding.what}
    return {**values, "remedy": finding.remedy or None}


def _print(console: Console, finding: Finding) -> None:
    mark, style = _MARKS[finding.state]
    quiet = "dim" if finding.state is FindingState.NOT_APPLICABLE else ""
    show(console, Text.assemble((f"{mark:7}", style), (f"{finding.name:13}", "bold"), (finding.what, quiet)), _COLUMN)
    if finding.remedy:
        # Folded by the terminal alone: what is copied from the screen must be what can be pasted.
        console.print(Text(f"{'':{_COLUMN}}{finding.remedy}", style="bold"), soft_wrap=True)


def _progress(doing: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{doing}" + ("..." if doing else ""), err=True, nl=False)
