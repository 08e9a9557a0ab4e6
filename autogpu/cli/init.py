"""``autogpu init``: a project's own policy to start from."""

from __future__ import annotations

import os
from pathlib import Path

import click

from autogpu.errors import AutoGpuError
from autogpu.policy.model import SYSTEM_FILE
from autogpu.policy.schema import schema_file
from autogpu.policy.sources import PROJECT_FILE, PYPROJECT, PolicyPaths, found_source
from autogpu.policy.templates import template
from autogpu.reporting.text import printable
from autogpu.variables import POLICY_FILE


@click.command(
    epilog="""\b
Examples:
  autogpu init          autogpu.toml in this folder
  autogpu init --user   ~/.config/autogpu/autogpu.toml, for all your projects"""
)
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False), default=Path())
@click.option("--user", "is_user", is_flag=True, help="Write your user file, which applies to all your projects.")
def init(folder: Path, is_user: bool) -> None:
    """Write an autogpu.toml with every key in it and none of them set. Nothing is overwritten."""
    file = _user_file() if is_user else folder / PROJECT_FILE
    before = None if is_user else _used_until_now(folder)
    described_in = schema_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # "x": never over a file that is there, not even one that appears meanwhile.
        with file.open("x", encoding="utf-8") as opened:
            opened.write(template(described_in.as_uri() if described_in else ""))
    except FileExistsError:
        what = f"{printable(str(file))} is there already"
        raise AutoGpuError(what, remedy="`autogpu config` shows the values in use") from None
    except OSError as error:
        what = f"{printable(str(file))} can't be written: {error.strerror}"
        raise AutoGpuError(what, remedy="choose a folder of your own") from None
    click.echo(f"wrote {printable(str(file))}, in which nothing is set yet; `autogpu config` shows the values in use")
    named = os.environ.get(POLICY_FILE)
    if named and not is_user:
        click.echo(f"It is not used as long as {POLICY_FILE} names {printable(named)}.")
    elif before is not None:
        table = "[tool.autogpu] in " if before.name == PYPROJECT else ""
        click.echo(f"It is used in and below its folder from now on, and {table}{printable(str(before))} is not.")


def _used_until_now(folder: Path) -> Path | None:
    """The project's policy that the scripts in ``folder`` have: beside them, or in a folder above."""
    return found_source(PolicyPaths.of(os.environ), None, Path.cwd() / folder, system_file=SYSTEM_FILE).file


def _user_file() -> Path:
    file = PolicyPaths.of(os.environ).user_file
    if file is None:
        raise AutoGpuError("there is no home folder", remedy="set HOME, or name a folder: autogpu init FOLDER")
    return file
