"""``autogpu install``: write the start-up files and prove that they work."""

from __future__ import annotations

import json
from pathlib import Path

import click

from autogpu.install import METHODS, Installed
from autogpu.install import install as install_files

TARGET = click.Path(path_type=Path)


@click.command(
    epilog="""\b
Examples:
  autogpu install                          for the environment of this autogpu
  autogpu install --target ~/lib/autogpu   for every Python with that folder on PYTHONPATH"""
)
@click.option(
    "--method",
    type=click.Choice(METHODS),
    default="auto",
    show_default=True,
    help="What loads the hook: a .pth file, a .start file beside it (for Python 3.15 and later), or a "
    "sitecustomize.py that also runs the one it hides. auto takes what this Python reads.",
)
@click.option(
    "--target", type=TARGET, metavar="DIR", help="Write into DIR instead of this environment's site-packages."
)
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")
def install(method: str, target: Path | None, as_json: bool) -> None:
    """Make every Python start of this environment load autogpu's hook.

    Writes a few small files, starts a fresh Python to prove that it loads them, and takes them back if it
    does not. Running it twice changes nothing; after an upgrade of autogpu it brings them up to date.
    """
    done = install_files(target, method)
    undo = "autogpu uninstall" if target is None else f"autogpu uninstall --target {done.folder}"
    if as_json:
        click.echo(json.dumps(_as_values(done, undo), indent=2))
        return
    for path in done.written:
        click.echo(f"wrote {path}")
    for path in done.removed:
        click.echo(f"removed {path}, which is no longer needed")
    if not done.written and not done.removed:
        click.echo(f"Everything was in place in {done.folder}.")
    by_path = f" with {done.folder} on PYTHONPATH" if done.on_pythonpath else ""
    click.echo(f"A fresh {done.interpreter.name}{by_path} loads {done.proof.hook}.")
    click.echo("From now on, scripts of this environment get their GPU from autogpu.")
    click.echo(f"To undo: {undo}")


def _as_values(done: Installed, undo: str) -> dict[str, object]:
    return {
        "version": 1,
        "python": done.interpreter.executable,
        "folder": str(done.folder),
        "method": done.method,
        "written": [str(path) for path in done.written],
        "unchanged": [str(path) for path in done.unchanged],
        "removed": [str(path) for path in done.removed],
        "on_pythonpath": done.on_pythonpath,
        "loads": str(done.proof.hook),
        "undo": undo,
    }
