"""``autogpu doctor``: checks of an environment, with a remedy for each problem."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Mapping, Sequence

import click
from rich.console import Console
from rich.text import Text

from autogpu.cli.screen import BAD, GOOD, show_line
from autogpu.doctor.checks import gather, run_checks
from autogpu.doctor.model import Facts, Finding, State
from autogpu.reporting.doctor import sentence
from autogpu.snippet import run_snippet
from autogpu.text import counted

_MARKS = {
    State.PASSED: ("ok", GOOD),
    State.WARNING: ("warn", "bold"),
    State.FAILED: ("FAILED", f"bold {BAD}"),
    State.NOT_APPLICABLE: ("-", "dim"),
}


@click.command(
    epilog="""Exit status: 0 if no check failed, else 1.

\b
Examples:
  autogpu doctor
  autogpu doctor --python ~/env/bin/python
  autogpu doctor --json"""
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--python", metavar="PATH", help="Check the environment of this Python; autogpu need not be installed there."
)
def doctor(as_json: bool, python: str | None) -> int:
    """Find problems that keep scripts from their GPUs or from autogpu.

    The checks are for this environment and folder. They take some seconds, because they import the frameworks. They
    claim no GPU, and make no context on one.
    """
    executable = sys.executable
    if python:
        executable = os.path.abspath(shutil.which(python) or python)  # noqa: PTH100  (a venv's Python is a link)
        if not run_snippet(executable, "import autogpu.cli.main; print(1)", os.environ).error:
            command = [executable, "-m", "autogpu", "doctor", *(["--json"] if as_json else [])]
            return subprocess.run(command, check=False).returncode
        if run_snippet(executable, "print(1)", os.environ).error:
            what = f"{python} does not start; pass the path of a working Python"
            raise click.BadParameter(what, param_hint="--python")
    with Console(stderr=True).status("reading the driver and importing the frameworks"):
        facts = gather(os.environ, executable)
        findings = run_checks(facts)
    if as_json:
        values = [_plain(name, finding, facts) for name, finding in findings.items()]
        click.echo(json.dumps({"version": 1, "findings": values}, indent=2))
    else:
        _show(findings, facts)
    return int(State.FAILED in _states(findings))


def _states(findings: Mapping[str, Finding]) -> list[State]:
    return [finding.state for finding in findings.values()]


def _show(findings: Mapping[str, Finding], facts: Facts) -> None:
    console = Console(highlight=False)
    width = max(map(len, findings)) + 2
    column = width + 7
    for name, finding in findings.items():
        what, remedy = sentence(finding, facts)
        mark, style = _MARKS[finding.state]
        quiet = "dim" if finding.state is State.NOT_APPLICABLE else ""
        line = Text.assemble((f"{mark:7}", style), (f"{name:{width}}", "bold"), (what, quiet))
        show_line(console, line, column)
        if remedy:
            # Leave line breaks to the terminal: a user may copy a command from the remedy and paste it into a shell.
            emphasis = "bold" if finding.state in (State.WARNING, State.FAILED) else quiet
            console.print(Text(f"{'':{column}}{remedy}", style=emphasis), soft_wrap=True)
    click.echo(_summary(_states(findings)))


def _summary(states: Sequence[State]) -> str:
    if State.FAILED in states:
        return f"{counted(states.count(State.FAILED), 'check')} failed."
    return "No check failed, but there are warnings." if State.WARNING in states else "No problem was found."


def _plain(name: str, finding: Finding, facts: Facts) -> dict[str, str | None]:
    what, remedy = sentence(finding, facts)
    return {
        "check": name,
        "state": finding.state.value,
        "cause": finding.cause.value,
        "what": what,
        "remedy": remedy or None,
    }
