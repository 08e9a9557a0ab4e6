"""``autogpu config``: each key of the policy with its value and origin. ``autogpu init``: a file to start from."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Iterator

import click
from rich.console import Console
from rich.text import Text

from autogpu import policy
from autogpu.cli.main import VerbGroup
from autogpu.cli.screen import BAD, GOOD, show
from autogpu.errors import AutoGpuError
from autogpu.history import History, runs_of
from autogpu.policy import BY_DOTTED, KEYS, SYSTEM_FILE, Origin, Problem, Resolved, Setting
from autogpu.policy.model import DEFAULT, ENVIRONMENT
from autogpu.policy.sources import PROJECT_FILE, PYPROJECT, found_source, homes_of, user_file_of
from autogpu.policy.templates import template
from autogpu.reporting.text import counted, printable, short_path
from autogpu.variables import POLICY_FILE

# What was typed for `autogpu run` reaches its programs in the variable of the key.
_TYPED = {key.flag: key.variable for key in KEYS}


@click.group(
    cls=VerbGroup,
    invoke_without_command=True,
    subcommand_metavar="[VERB] [ARGS]...",
    epilog="""\b
Examples:
  autogpu config
  autogpu config check autogpu.toml""",
)
@click.option("--changed", is_flag=True, help="Only the keys that are set somewhere.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def config(ctx: click.Context, changed: bool, as_json: bool) -> int:
    """Show every key of the policy: its value here, where it was set, and what it overrode.

    The last line says where the runs of your scripts are kept, if any are. Exit status 1 if something in a file or
    variable is invalid; the problems are listed at the end.
    """
    if ctx.invoked_subcommand is not None:
        return 0
    resolved = policy.resolve(os.environ, script=None, working_directory=policy.working_directory())
    if as_json:
        click.echo(json.dumps(_as_values(resolved), indent=2, default=_plain))
    else:
        console = Console(highlight=False)
        for line, indent in _config_lines(resolved, changed):
            show(console, line, indent)
        for text in _history_lines():
            show(console, Text(text))
    return 1 if resolved.problems else 0


@config.command(
    epilog="""\b
Examples:
  autogpu config check autogpu.toml
  autogpu config check ~/.config/autogpu/autogpu.toml"""
)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False))
def check(files: tuple[Path, ...]) -> int:
    """Check policy files, for editors and CI. Exit status 1 if anything in them is invalid."""
    status = 0
    for file in files:
        problems = policy.problems_of(file.absolute(), os.environ, is_system=file.resolve() == SYSTEM_FILE)
        click.echo("\n".join(map(str, problems)) or f"{printable(str(file))}: valid")
        status |= bool(problems)
    return status


def _history_lines() -> Iterator[str]:
    history = History(os.environ)
    count = len(runs_of(history.read()))
    if count:
        where = short_path(f"{history.folder}/runs", (os.environ.get("HOME", ""),))
        yield ""
        yield f"{counted(count, 'run')} of your scripts kept in {where}, for you alone; the file may be deleted"


def _config_lines(resolved: Resolved, changed: bool) -> Iterator[tuple[Text, int | None]]:
    settings = [s for s in resolved.settings.values() if not changed or s.origin.layer != DEFAULT]
    key_width = max((len(setting.key) for setting in settings), default=0)
    text_width = max((len(setting.text) for setting in settings), default=0)
    for setting in settings:
        is_set = setting.origin.layer != DEFAULT
        line = Text(f"{setting.key:{key_width}}  ", style="bold" if is_set else "")
        line.append(f"{setting.text:{text_width}}  ").append(str(setting.origin), style=GOOD if is_set else "")
        over = [f"{each.text} ({each.origin})" for each in _overridden(setting)]
        line.append(f", overrides {', '.join(over)}" if over else "")
        if setting.key in resolved.policy.locked:
            line.append(", locked by the system file", style="bold")
        yield line, key_width + text_width + 4
    if not settings:
        yield Text("Nothing is set: the defaults are used."), None
    if resolved.problems:
        yield Text(), None
    for problem in resolved.problems:
        yield Text(str(problem), style=BAD), None


def _overridden(setting: Setting) -> list[Setting]:
    lower = setting.overrides
    return [] if lower is None else [lower, *_overridden(lower)]


def _as_values(resolved: Resolved) -> dict[str, object]:
    settings = [
        {
            **_plain(setting),
            "is_locked": setting.key in resolved.policy.locked,
            "overrides": _overridden(setting),
        }
        for setting in resolved.settings.values()
    ]
    files = {"files": resolved.files, "project_file": resolved.project_file}
    return {"version": 1, **files, "settings": settings, "problems": resolved.problems}


def _plain(value: Path | Origin | Problem | Setting) -> Any:
    if isinstance(value, Setting):
        plain = BY_DOTTED[value.key].kind.plain(value.value)
        return {"key": value.key, "value": plain, "text": value.text, "origin": value.origin}
    if isinstance(value, Origin):
        variable = _TYPED.get(value.place, value.place) if value.layer == ENVIRONMENT else None
        return {"layer": value.layer, "file": value.file, "line": value.line, "variable": variable}
    return str(value) if isinstance(value, Path) else vars(value)


@click.command(
    epilog="""\b
Examples:
  autogpu init
  autogpu init --user"""
)
@click.option("--user", "is_user", is_flag=True, help="Write ~/.config/autogpu/autogpu.toml, for all your projects.")
def init(is_user: bool) -> None:
    """Write an autogpu.toml into this folder, with every key and none of them set. Nothing is overwritten."""
    user_file = user_file_of(os.environ)
    file = user_file if is_user else Path(PROJECT_FILE)
    if file is None:
        raise AutoGpuError("there is no home folder", remedy="set HOME, or leave out --user")
    # The policy that the scripts in this folder have until now: beside them, or in a folder above.
    before = None if is_user else found_source(homes_of(os.environ), None, Path.cwd(), (SYSTEM_FILE, user_file)).file
    _write_new(file, template())
    click.echo(f"wrote {printable(str(file))}, in which nothing is set yet; `autogpu config` shows the values in use")
    named = os.environ.get(POLICY_FILE)
    if named and not is_user:
        click.echo(f"It is not used as long as {POLICY_FILE} names {printable(named)}.")
    elif before is not None:
        table = "[tool.autogpu] in " if before.name == PYPROJECT else ""
        click.echo(f"It is used in and below its folder from now on, and {table}{printable(str(before))} is not.")


def _write_new(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # "x": never over a file that is there, not even one that appears meanwhile.
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        what = f"{printable(str(file))} is there already"
        raise AutoGpuError(what, remedy="`autogpu config` shows the values in use") from None
    except OSError as error:
        what = f"{printable(str(file))} can't be written: {error.strerror}"
        raise AutoGpuError(what, remedy="choose a folder of your own") from None
