"""``autogpu uninstall``: remove the start-up files."""

from __future__ import annotations

import json
from pathlib import Path

import click

from autogpu.install import uninstall as uninstall_files


@click.command(
    epilog="""\b
Examples:
  autogpu uninstall                          from the environment of this autogpu
  autogpu uninstall --target ~/lib/autogpu   from a folder on PYTHONPATH"""
)
@click.option(
    "--target",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Remove from DIR instead of this environment's site-packages.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")
def uninstall(target: Path | None, as_json: bool) -> None:
    """Remove the start-up files that install wrote, and only those.

    The environment is then as it was before. The package itself stays: pip uninstall autogpu removes that.
    """
    done = uninstall_files(target)
    if as_json:
        values = {"version": 1, "folder": str(done.folder), "removed": [str(path) for path in done.removed]}
        click.echo(json.dumps(values, indent=2))
        return
    for path in done.removed:
        click.echo(f"removed {path}")
    if done.removed:
        click.echo("From the next start on, Python no longer loads autogpu's hook.")
    else:
        click.echo(f"autogpu has no start-up files in {done.folder}; there is nothing to do.")
