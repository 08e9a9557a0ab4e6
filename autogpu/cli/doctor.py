"""``autogpu doctor``: what is wrong, and what to do about it."""

from __future__ import annotations

import json
import os
import sys

import click
from rich.console import Console
from rich.text import Text

from autogpu import doctor as examination
from autogpu.cli.screen import BAD, GOOD, show
from autogpu.doctor import Finding, State

VERSION = 1
_COLUMN = 20

_MARKS = {State.PASSED: ("ok", GOOD), State.FAILED: ("FAILED", f"bold {BAD}"), State.NOT_APPLICABLE: ("-", "dim")}


@click.command(
    epilog="""Exit status: 0 if nothing failed, else 1.

\b
Examples:
  autogpu doctor
  autogpu doctor --json"""
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(as_json: bool) -> int:
    """Look for whatever keeps a script in this environment and folder from its GPU, or from autogpu.

    Takes some seconds, since TensorFlow is imported. Nothing is claimed, and no context is made on a GPU.
    """
    facts = examination.gather(os.environ, _progress)
    _progress("")
    findings = examination.examine(facts)
    failed = [finding for finding in findings if finding.state is State.FAILED]
    if as_json:
        told = [{"check": f.name, "state": f.state.value, "what": f.what, "remedy": f.remedy or None} for f in findings]
        click.echo(json.dumps({"version": VERSION, "findings": told}, indent=2))
    else:
        console = Console(highlight=False)
        for finding in findings:
            _print(console, finding)
        count = "1 check" if len(failed) == 1 else f"{len(failed)} checks"
        click.echo(f"{count} failed." if failed else "Nothing is wrong.")
    return 1 if failed else 0


def _print(console: Console, finding: Finding) -> None:
    mark, style = _MARKS[finding.state]
    quiet = "dim" if finding.state is State.NOT_APPLICABLE else ""
    show(console, Text.assemble((f"{mark:7}", style), (f"{finding.name:13}", "bold"), (finding.what, quiet)), _COLUMN)
    if finding.remedy:
        # Folded by the terminal alone: what is copied from the screen must be what can be pasted.
        console.print(Text(f"{'':{_COLUMN}}{finding.remedy}", style="bold"), soft_wrap=True)


def _progress(doing: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{doing}" + ("..." if doing else ""), err=True, nl=False)
