"""``autogpu config`` prints each policy key with its value and origin; ``autogpu init`` writes a template."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Iterator

import click
from rich.console import Console
from rich.text import Text

from autogpu import policy
from autogpu.cli.screen import BAD, GOOD, show_line
from autogpu.errors import AutoGpuError
from autogpu.policy import BY_DOTTED, SYSTEM_FILE, Resolved, Setting
from autogpu.policy.sources import PROJECT_FILE, user_file_of
from autogpu.policy.templates import template
from autogpu.reporting.mistakes import policy_problem
from autogpu.text import printable
from autogpu.variables import POLICY_FILE


@click.group(
    invoke_without_command=True,
    subcommand_metavar="[VERB] [ARGS]...",
    epilog="""\b
Examples:
  autogpu config
  autogpu config check autogpu.toml
  autogpu config check --help""",
)
@click.option("--changed", is_flag=True, help="Show only the keys that a file or variable sets.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def config(ctx: click.Context, changed: bool, as_json: bool) -> int:
    """Show each policy key with its value here and its origin.

    If the value overrides other values, the line lists them too. The exit status is 1 if a file or variable has an
    invalid entry; these problems are listed at the end. `autogpu config check FILE` checks one file, even if it is not
    in force.
    """
    if ctx.invoked_subcommand is not None:
        return 0
    resolved = policy.resolve(os.environ, script=None, working_directory=policy.working_directory())
    if as_json:
        click.echo(json.dumps(_as_values(resolved), indent=2))
    else:
        console = Console(highlight=False)
        for line, indent in _setting_lines(resolved, changed):
            show_line(console, line, indent)
        for problem in ["", *map(policy_problem, resolved.problems)] if resolved.problems else []:
            show_line(console, Text(problem, style=BAD))
    return 1 if resolved.problems else 0


@config.command(
    epilog="""\b
Examples:
  autogpu config check autogpu.toml
  autogpu config check --system draft.toml"""
)
@click.option(
    "--system",
    "is_system",
    is_flag=True,
    help=f"Check the files as {SYSTEM_FILE}, the only file that may have [limits] and locked.",
)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False))
def check(files: tuple[Path, ...], is_system: bool) -> int:
    """Check policy files, for editors and CI.

    The exit status is 1 if a file has an invalid entry, else 0.
    """
    status = 0
    for file in files:
        counts_as_system = is_system or file.resolve() == SYSTEM_FILE
        problems = policy.problems_of(file.absolute(), os.environ, is_system=counts_as_system)
        click.echo("\n".join(map(policy_problem, problems)) or f"{printable(str(file))}: valid")
        status |= bool(problems)
    return status


def _setting_lines(resolved: Resolved, changed: bool) -> Iterator[tuple[Text, int | None]]:
    settings = [setting for setting in resolved.settings.values() if setting.is_set or not changed]
    if not settings:
        yield Text("Nothing is set: the defaults are used."), None
    key_width, text_width = (max(map(len, words)) for words in zip(("", ""), *((s.key, s.text) for s in settings)))
    for setting in settings:
        line = Text.assemble(
            (f"{setting.key:{key_width}}  ", "bold" if setting.is_set else ""),
            f"{setting.text:{text_width}}  ",
            *_origin_parts(setting, is_locked=setting.key in resolved.policy.locked),
        )
        yield line, key_width + text_width + 4


def _origin_parts(setting: Setting, *, is_locked: bool) -> Iterator[tuple[str, str]]:
    """Yield the origin of a value and what it overrides, each with its style."""
    yield str(setting.origin), GOOD if setting.is_set else ""
    if setting.overridden:
        over = ", ".join(f"{each.text} ({each.origin})" for each in setting.overridden)
        yield f", overrides {over}", ""
    if is_locked:
        yield ", locked by the system file", "bold"


def _as_values(resolved: Resolved) -> dict[str, object]:
    settings = [
        {
            **_as_value(setting),
            "is_locked": setting.key in resolved.policy.locked,
            "overrides": [_as_value(each) for each in setting.overridden],
        }
        for setting in resolved.settings.values()
    ]
    return {"version": 1, "settings": settings, "problems": [*map(policy_problem, resolved.problems)]}


def _as_value(setting: Setting) -> dict[str, object]:
    value = BY_DOTTED[setting.key].kind.plain(setting.value)
    return {"key": setting.key, "value": value, "layer": setting.origin.layer.value, "origin": str(setting.origin)}


@click.command(
    epilog="""\b
Examples:
  autogpu init
  autogpu init --user"""
)
@click.option("--user", "is_user", is_flag=True, help="Write ~/.config/autogpu/autogpu.toml, for all your projects.")
def init(is_user: bool) -> None:
    """Write an autogpu.toml here, with a project's keys as comments.

    The file sets no key. An existing file is not overwritten.
    """
    file = user_file_of(os.environ) if is_user else Path(PROJECT_FILE)
    if file is None:
        raise AutoGpuError("HOME is not set to an absolute path", remedy="set HOME, or leave out --user")
    file.parent.mkdir(parents=True, exist_ok=True)
    # Mode "x" fails if the file exists, even if another process has just created it.
    try:
        opened = file.open("x", encoding="utf-8")
    except FileExistsError:
        what = f"{printable(str(file))} already exists and was not changed"
        raise AutoGpuError(what, remedy="edit it, or move it away first") from None
    with opened:
        opened.write(template())
    # Only a project file replaces other project files, and only if AUTOGPU_POLICY is not set.
    is_read = not is_user and POLICY_FILE not in os.environ
    where = "; in this folder and below, it replaces any other project file" if is_read else ""
    click.echo(f"wrote {printable(str(file))}, which sets no key yet{where}")
