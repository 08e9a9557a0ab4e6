"""``autogpu install`` and ``uninstall``: write the start-up files and prove that they work, and remove them."""

from __future__ import annotations

import json
from pathlib import Path

import click

from autogpu import install as installing

TARGET = click.option(
    "--target", type=click.Path(path_type=Path), metavar="DIR", help="DIR instead of this environment's site-packages."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")


@click.command(
    epilog="""\b
Examples:
  autogpu install                          for the environment of this autogpu
  autogpu install --target ~/lib/autogpu   for every Python with that folder on PYTHONPATH"""
)
@click.option(
    "--method",
    type=click.Choice(installing.METHODS),
    default="auto",
    show_default=True,
    help="What loads the hook: a .pth file, a .start file beside it (for Python 3.15 and later), or a "
    "sitecustomize.py that also runs the one it hides. auto takes what this Python reads.",
)
@TARGET
@JSON
def install(method: str, target: Path | None, as_json: bool) -> None:
    """Make every Python start of this environment load autogpu's hook.

    Writes a few small files, starts a fresh Python to prove that it loads them, and takes them away if it
    does not. Running it twice changes nothing; after an upgrade of autogpu it brings them up to date.
    """
    done = installing.install(target, method)
    undo = "autogpu uninstall" if target is None else f"autogpu uninstall --target {done.folder}"
    if as_json:
        values = {
            "version": 1,
            "python": done.interpreter.executable,
            "folder": str(done.folder),
            "method": done.method,
            **{name: list(map(str, getattr(done, name))) for name in ("written", "unchanged", "removed")},
            "on_pythonpath": done.on_pythonpath,
            "loads": str(done.proof.hook),
            "undo": undo,
        }
        click.echo(json.dumps(values, indent=2))
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


@click.command(
    epilog="""\b
Examples:
  autogpu uninstall                          from the environment of this autogpu
  autogpu uninstall --target ~/lib/autogpu   from a folder on PYTHONPATH"""
)
@TARGET
@JSON
def uninstall(target: Path | None, as_json: bool) -> None:
    """Remove the start-up files that install wrote, and only those.

    The environment is then as it was before. The package itself stays: pip uninstall autogpu removes that.
    """
    folder, removed = installing.uninstall(target)
    if as_json:
        values = {"version": 1, "folder": str(folder), "removed": [str(path) for path in removed]}
        click.echo(json.dumps(values, indent=2))
        return
    for path in removed:
        click.echo(f"removed {path}")
    if removed:
        click.echo("From the next start on, Python no longer loads autogpu's hook.")
    else:
        click.echo(f"autogpu has no start-up files in {folder}; there is nothing to do.")
