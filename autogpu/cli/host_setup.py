"""``autogpu host-setup``: what root does once per host, so that all its users coordinate."""

from __future__ import annotations

import json
from pathlib import Path

import click

from autogpu import host_setup as hosts
from autogpu.lease.folder import HOST_FOLDER
from autogpu.reporting.text import counted

_VERSION = 1
_DONE = {"write": "wrote", "make": "made", "repair": "repaired"}


@click.command(
    "host-setup",
    epilog="""\b
Examples:
  sudo $(command -v autogpu) host-setup   once per host
  autogpu host-setup --check              what is in place; needs no root""",
)
@click.option("--check", "is_check", is_flag=True, help="Change nothing; exit status 0 if all is in place, else 1.")
@click.option("--undo", "is_undo", is_flag=True, help="Remove what this wrote, and nothing else.")
@click.option(
    "--root",
    type=click.Path(path_type=Path),
    metavar="DIR",
    default=Path("/"),
    help="Work on the image below DIR instead of this host; needs no root.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was found or done as JSON.")
def host_setup(is_check: bool, is_undo: bool, root: Path, as_json: bool) -> int:
    """Give all users of this host one folder to coordinate in. For its administrator.

    Writes a file for tmpfiles.d, from which /run/autogpu is made at every boot, makes that folder now, and
    proposes a policy for the host in /etc/autogpu/autogpu.toml, in which nothing is set. Running it twice
    changes nothing. Jobs that are running are not disturbed.
    """
    if is_check and is_undo:
        raise click.UsageError("--check and --undo exclude each other", click.get_current_context())
    if is_check:
        return _show_state(root, as_json)
    return _undo(root, as_json) if is_undo else _setup(root, as_json)


def _setup(root: Path, as_json: bool) -> int:
    done = hosts.setup(root)
    host = done.host
    if as_json:
        steps = [{"action": step.action, "path": str(step.path)} for step in done.steps]
        _print_json({**_as_values(host), "steps": steps, "notes": list(done.notes)})
        return 0
    for step in done.steps:
        more = ": a proposal in which nothing is set" if step.path == host.paths.policy else ""
        click.echo(f"{_DONE[step.action]} {step.path}{more}")
    if not done.steps:
        click.echo("Everything was in place.")
    problems = [f"{part.path} {part.problem}. {part.consequence}" for part in hosts.parts(host) if part.problem]
    for line in (*done.notes, *problems):
        click.echo(line)
    if host.paths.is_host:
        click.echo(f"From now on jobs of all users coordinate in {HOST_FOLDER}.")
    _echo_stranded(host)
    click.echo(f"Containers take part with -v {HOST_FOLDER}:{HOST_FOLDER}")
    click.echo(f"To undo: {host.command('--undo')}")
    return 0


def _show_state(root: Path, as_json: bool) -> int:
    host = hosts.observe(root)
    status = 0 if _is_in_place(host) else 1
    if as_json:
        _print_json(_as_values(host))
        return status
    for part in hosts.parts(host):
        click.echo(f"{part.path} {part.problem or 'is in place'}.")
        if part.consequence:
            click.echo(f"  {part.consequence}")
    if status:
        click.echo(f"To set it up: {host.command()}")
    else:
        _echo_stranded(host)
        has_problem = any(part.problem for part in hosts.parts(host))
        click.echo("All that is required is in place." if has_problem else "All is in place.")
    return status


def _undo(root: Path, as_json: bool) -> int:
    done = hosts.undo(root)
    if as_json:
        left = [{"path": str(step.path), "why": step.why} for step in done.left]
        removed = [str(path) for path in done.removed]
        _print_json({"version": _VERSION, "root": str(done.host.paths.root), "removed": removed, "left": left})
        return 1 if done.in_use else 0
    for path in done.removed:
        click.echo(f"removed {path}")
    for step in done.left:
        click.echo(f"left {step.path}, which {step.why}")
    if done.in_use:
        click.echo(f"For the folder, run it again later: {done.host.command('--undo')}")
    elif not done.removed:
        click.echo("There is nothing to undo.")
    return 1 if done.in_use else 0


def _is_in_place(host: hosts.Host) -> bool:
    return all(part.is_in_place or not part.is_required for part in hosts.parts(host))


def _echo_stranded(host: hosts.Host) -> None:
    if host.stranded:
        jobs = f"{counted(len(host.stranded), 'job')} hold{'s' if len(host.stranded) == 1 else ''}"
        click.echo(
            f"{jobs} GPUs in {host.paths.fallback}: jobs started before host-setup and those started after it "
            "do not see each other until the former end."
        )


def _as_values(host: hosts.Host) -> dict[str, object]:
    return {
        "version": _VERSION,
        "root": str(host.paths.root),
        "in_place": _is_in_place(host),
        "parts": [
            {
                "name": part.name,
                "path": str(part.path),
                "in_place": part.is_in_place,
                "required": part.is_required,
                "problem": part.problem,
                "consequence": part.consequence,
            }
            for part in hosts.parts(host)
        ],
        "jobs_in_fallback": len(host.stranded),
        "containers": f"-v {HOST_FOLDER}:{HOST_FOLDER}",
        "undo": host.command("--undo"),
    }


def _print_json(values: dict[str, object]) -> None:
    click.echo(json.dumps(values, indent=2))
