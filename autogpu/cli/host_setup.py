"""``autogpu host-setup``: what root does once per host, so that all its users coordinate."""

from __future__ import annotations

import json
from pathlib import Path

import click

from autogpu import host as hosts
from autogpu.lease.folder import HOST_FOLDER

CONTAINERS = f"-v {HOST_FOLDER}:{HOST_FOLDER}"

_DONE = {"write": "wrote", "make": "made", "repair": "repaired"}


@click.command(
    "host-setup",
    epilog="""\b
Examples:
  sudo $(command -v autogpu) host-setup   once per host
  autogpu host-setup --check              what is in place; anyone may ask""",
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
        return _check(root, as_json)
    if is_undo:
        return _undo(root, as_json)
    return _setup(root, as_json)


def _setup(root: Path, as_json: bool) -> int:
    done = hosts.setup(root)
    host = done.host
    if as_json:
        steps = [{"action": step.action, "path": str(step.path)} for step in done.steps]
        _print({**_as_values(host), "steps": steps, "notes": list(done.notes)})
        return 0
    for step in done.steps:
        more = ": a proposal in which nothing is set" if step.path == host.places.policy else ""
        click.echo(f"{_DONE[step.action]} {step.path}{more}")
    if not done.steps:
        click.echo("Everything was in place.")
    for note in done.notes:
        click.echo(note)
    for part in hosts.parts(host):
        if part.problem:
            click.echo(f"{part.path} {part.problem}. {part.consequence}")
    if host.places.is_host:
        click.echo(f"From now on jobs of all users coordinate in {HOST_FOLDER}.")
    _say_stranded(host)
    click.echo(f"Containers take part with {CONTAINERS}")
    click.echo(f"To undo: {host.command('--undo')}")
    return 0


def _check(root: Path, as_json: bool) -> int:
    host = hosts.observe(root)
    parts = hosts.parts(host)
    is_in_place = all(part.is_in_place or not part.is_required for part in parts)
    if as_json:
        _print(_as_values(host))
        return 0 if is_in_place else 1
    for part in parts:
        if part.problem:
            click.echo(f"{part.path} {part.problem}.")
            if part.consequence:
                click.echo(f"  {part.consequence}")
        else:
            click.echo(f"{part.path} is in place.")
    if is_in_place:
        _say_stranded(host)
        click.echo("All is in place.")
        return 0
    click.echo(f"To set it up: {host.command()}")
    return 1


def _undo(root: Path, as_json: bool) -> int:
    done = hosts.undo(root)
    status = 1 if done.in_use else 0
    if as_json:
        left = [{"path": str(step.path), "why": step.why} for step in done.left]
        removed = [str(path) for path in done.removed]
        _print({"version": 1, "root": str(done.host.places.root), "removed": removed, "left": left})
        return status
    for path in done.removed:
        click.echo(f"removed {path}")
    for step in done.left:
        click.echo(f"left {step.path}, which {step.why}")
    if done.in_use:
        click.echo(f"For the folder, run it again later: {done.host.command('--undo')}")
    elif not done.removed:
        click.echo("There is nothing to undo.")
    return status


def _say_stranded(host: hosts.Host) -> None:
    if host.stranded:
        jobs = "1 job holds" if len(host.stranded) == 1 else f"{len(host.stranded)} jobs hold"
        click.echo(
            f"{jobs} GPUs in {host.places.fallback}: jobs started before host-setup and those started after it "
            "do not see each other until the former end."
        )


def _as_values(host: hosts.Host) -> dict[str, object]:
    parts = hosts.parts(host)
    return {
        "version": 1,
        "root": str(host.places.root),
        "in_place": all(part.is_in_place or not part.is_required for part in parts),
        "parts": [
            {
                "name": part.name,
                "path": str(part.path),
                "in_place": part.is_in_place,
                "required": part.is_required,
                "problem": part.problem,
                "consequence": part.consequence,
            }
            for part in parts
        ],
        "jobs_in_fallback": len(host.stranded),
        "containers": CONTAINERS,
        "undo": host.command("--undo"),
    }


def _print(values: dict[str, object]) -> None:
    click.echo(json.dumps(values, indent=2))
