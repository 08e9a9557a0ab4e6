"""``autogpu doctor``: what is wrong, and what to do about it."""

from __future__ import annotations

import json
import os
import sys

import click
from rich.console import Console
from rich.text import Text

from autogpu import doctor as examination
from autogpu.doctor import Finding, State

VERSION = 1

_MARKS = {State.PASSED: ("ok", "green"), State.FAILED: ("FAILED", "bold red"), State.NOT_APPLICABLE: ("-", "dim")}


@click.command(
    epilog="""\b
Exit status: 0 if nothing failed, else 1.
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
    line = Text(f"{mark:7}", style=style)
    line.append(f"{finding.name:12} ", style="bold")
    line.append(finding.what, style="default")
    remedy = Text(f"{'':20}{finding.remedy}", style="yellow") if finding.remedy else None
    for text in filter(None, (line, remedy)):
        if console.is_terminal:
            console.print(text, soft_wrap=True)
        else:
            click.echo(text.plain)


def _progress(doing: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{doing}" + ("..." if doing else ""), err=True, nl=False)
