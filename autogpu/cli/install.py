"""``autogpu install`` and ``uninstall``: write the start-up files and prove that they work, and remove them."""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
from pathlib import Path

import click

from autogpu import frameworks
from autogpu import install as installing
from autogpu.errors import InstallError
from autogpu.install import TIMEOUT_S, ask
from autogpu.install.files import HOOK
from autogpu.install.packages import pip_command, pip_source, what_to_add
from autogpu.reporting.text import printable

_LOOK = """
import importlib.util, json
print(json.dumps([bool(importlib.util.find_spec(name)) for name in ("autogpu", "pip")]))
"""

TARGET = click.option(
    "--target", type=click.Path(path_type=Path), metavar="DIR", help="This folder, on PYTHONPATH, not site-packages."
)
PYTHON = click.option("--python", metavar="PATH", help="The environment of this Python; it needs autogpu as well.")


@click.command(
    epilog="""\b
Examples:
  autogpu install
  autogpu install --python "$(command -v python)"
  autogpu install --target ~/lib/autogpu"""
)
@click.option(
    "--method",
    type=click.Choice(installing.METHODS),
    default="auto",
    show_default=True,
    help="What loads the hook: a .pth file with a .start file beside it (for Python 3.15 and later), or a "
    "sitecustomize.py that also runs the one it hides. auto takes what this Python reads.",
)
@TARGET
@PYTHON
def install(method: str, target: Path | None, python: str | None) -> int:
    """Make every Python start of this environment load autogpu's hook.

    Writes a few small files, starts a fresh Python to prove that it loads them, and takes them away if it
    does not. Running it twice changes nothing; after an upgrade of autogpu it brings them up to date.
    """
    if python:
        return _run_by(python, "install", target, "--method", method)
    done = installing.install(target, method)
    # As this was typed: where the command is not on PATH, or is another environment's, it is of no use.
    program = f"{shlex.quote(sys.executable)} -m autogpu" if Path(sys.argv[0]).name == "__main__.py" else "autogpu"
    undo = f"{program} uninstall" + (f" --target {done.folder}" if target else "")
    if not target:
        prefix = Path(sys.prefix)
        has_framework = any(importlib.util.find_spec(module) for module in frameworks.FRAMEWORKS)
        for doubt in filter(None, (why_not_meant(prefix, has_framework), what_to_add(prefix))):
            click.echo(f"autogpu: {printable(doubt, 600)}", err=True)
    for path in done.written:
        click.echo(f"wrote {path}")
    if not done.written:
        click.echo(f"Everything was in place in {done.folder}.")
    by_path = f" with {done.folder} on PYTHONPATH" if done.on_pythonpath else ""
    click.echo(f"A fresh {installing.NAME}{by_path} loads {done.folder / HOOK}.")
    click.echo("From now on, scripts of this environment get their GPU from autogpu.")
    click.echo(f"To undo: {undo}")
    return 0


def why_not_meant(prefix: Path, has_framework: bool) -> str:
    """Tell the environment of a tool and one without a framework from that of a person's scripts; ``""`` if it is."""
    why = "" if has_framework else f"has none of {', '.join(frameworks.FRAMEWORKS)}"
    # As uvx and pipx run make them. Source: https://bford.info/cachedir/
    if any((folder / "CACHEDIR.TAG").exists() for folder in prefix.parents):
        why = "is in a cache, and may be gone tomorrow"
    if any((prefix / name).exists() for name in ("uv-receipt.toml", "pipx_metadata.json")):
        why = "is the environment of a tool, which no script runs in"
    remedy = "probably it is not the one that you mean; to serve another environment: autogpu install --python PATH"
    return why and f"{prefix} {why}; {remedy}"


def _run_by(python: str, verb: str, target: Path | None, *options: str) -> int:
    """Let the autogpu of another environment do it: only that one's Python knows where it reads what."""
    # Absolute, since another folder is the current one there: a folder called autogpu here is not to be imported.
    executable = os.path.abspath(python)  # noqa: PTH100  (a virtual environment's Python is a link)
    answer = ask(executable, _LOOK, os.environ, TIMEOUT_S)
    if answer.error:
        raise InstallError(f"{executable} can't be started: {answer.error}", remedy="name a Python by --python")
    has_autogpu, has_pip = answer.value
    if not has_autogpu:
        remedy = pip_command(executable, f"install {pip_source()}", has_pip=has_pip) + ", and this again"
        raise InstallError(f"{executable} has no autogpu, which the hook would import", remedy=remedy)
    command = [executable, "-m", "autogpu", verb, *options]
    command += ["--target", os.path.abspath(str(target))] if target else []  # noqa: PTH100
    return subprocess.run(command, cwd=os.path.dirname(executable), check=False).returncode  # noqa: PTH120


@click.command(
    epilog="""\b
Examples:
  autogpu uninstall
  autogpu uninstall --target ~/lib/autogpu"""
)
@TARGET
@PYTHON
def uninstall(target: Path | None, python: str | None) -> int:
    """Remove the start-up files that install wrote, and only those.

    The environment is then as it was before. The package itself stays: pip uninstall autogpu removes that.
    """
    if python:
        return _run_by(python, "uninstall", target)
    folder, removed = installing.uninstall(target)
    for path in removed:
        click.echo(f"removed {path}")
    if removed:
        click.echo("From the next start on, Python no longer loads autogpu's hook.")
    else:
        click.echo(f"autogpu has no start-up files in {folder}; there is nothing to do.")
    return 0
