"""``autogpu doctor``: checks of an environment, with a remedy for each problem."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import click
from rich.console import Console
from rich.text import Text

from autogpu.cli.screen import BAD, GOOD, show_line
from autogpu.doctor.checks import examine, gather
from autogpu.doctor.model import Finding, State
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
    named = python and (shutil.which(python) or python)
    executable = os.path.abspath(named) if named else sys.executable  # noqa: PTH100  (a venv's Python is a link)
    if python and not run_snippet(executable, "import autogpu.cli.main; print(1)", os.environ).error:
        command = [executable, "-m", "autogpu", "doctor", *(["--json"] if as_json else [])]
        return subprocess.run(command, check=False).returncode
    if python and run_snippet(executable, "print(1)", os.environ).error:
        raise click.BadParameter(f"{python} does not start; pass the path of a working Python", param_hint="--python")
    with Console(stderr=True).status("reading the driver and importing the frameworks"):
        findings = examine(gather(os.environ, executable))
    states = [finding.state for finding in findings.values()]
    has_failed = State.FAILED in states
    if as_json:
        values = [_plain(name, finding) for name, finding in findings.items()]
        click.echo(json.dumps({"version": 1, "findings": values}, indent=2))
        return int(has_failed)
    console = Console(highlight=False)
    width = max(map(len, findings)) + 2
    column = width + 7
    for name, finding in findings.items():
        mark, style = _MARKS[finding.state]
        quiet = "dim" if finding.state is State.NOT_APPLICABLE else ""
        line = Text.assemble((f"{mark:7}", style), (f"{name:{width}}", "bold"), (finding.what, quiet))
        show_line(console, line, column)
        if finding.remedy:
            # Leave line breaks to the terminal: a user may copy a command from the remedy and paste it into a shell.
            console.print(Text(f"{'':{column}}{finding.remedy}", style="bold"), soft_wrap=True)
    all_is_well = "No check failed, but there are warnings." if State.WARNING in states else "No problem was found."
    click.echo(f"{counted(states.count(State.FAILED), 'check')} failed." if has_failed else all_is_well)
    return int(has_failed)


def _plain(name: str, finding: Finding) -> dict[str, str | None]:
    return {"check": name, "state": finding.state.value, "what": finding.what, "remedy": finding.remedy or None}
