"""``autogpu init``: a project's own policy to start from."""

from __future__ import annotations

import os
from pathlib import Path

import click

from autogpu.errors import AutoGpuError
from autogpu.policy.sources import PROJECT_FILE, PYPROJECT, PolicyPaths
from autogpu.policy.templates import template
from autogpu.reporting.text import printable


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
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # "x": never over a file that is there, not even one that appears meanwhile.
        with file.open("x", encoding="utf-8") as opened:
            opened.write(template())
    except FileExistsError:
        what = f"{printable(str(file))} is there already"
        raise AutoGpuError(what, remedy="`autogpu config` shows the values in use") from None
    except OSError as error:
        what = f"{printable(str(file))} can't be written: {error.strerror}"
        raise AutoGpuError(what, remedy="choose a folder of your own") from None
    click.echo(f"wrote {printable(str(file))}, in which nothing is set yet; `autogpu config` shows the values in use")
    neighbour = file.with_name(PYPROJECT)
    if neighbour.is_file() and "[tool.autogpu" in neighbour.read_text(encoding="utf-8", errors="replace"):
        click.echo(f"It is used from now on, and [tool.autogpu] in {printable(str(neighbour))} is not.")


def _user_file() -> Path:
    file = PolicyPaths.of(os.environ).user_file
    if file is None:
        raise AutoGpuError("there is no home folder", remedy="set HOME, or name a folder: autogpu init FOLDER")
    return file
