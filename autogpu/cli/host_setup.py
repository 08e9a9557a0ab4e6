"""``autogpu host-setup``: what root does once per host, so that all its users coordinate."""

from __future__ import annotations

import json
from pathlib import Path

import click

from autogpu import host_setup as hosts
from autogpu.lease.folder import HOST_FOLDER

_DONE = {"write": "wrote", "make": "made", "repair": "repaired", "remove": "removed", "leave": "left", "keep": "left"}


@click.command(
    "host-setup",
    epilog="""\b
Examples:
  sudo $(command -v autogpu) host-setup   once per host
  autogpu host-setup --check              what is in place; needs no root""",
)
@click.option("--check", "is_check", is_flag=True, help="Change nothing; exit status 0 if all is in place, else 1.")
@click.option("--print", "is_print", is_flag=True, help="Change nothing; print what it would write and run.")
@click.option("--undo", "is_undo", is_flag=True, help="Remove what this wrote, and nothing else.")
@click.option("--root", type=click.Path(path_type=Path), default="/", metavar="DIR", help="The top of an image.")
@click.option("--json", "as_json", is_flag=True, help="Print what was found or done as JSON.")
def host_setup(is_check: bool, is_print: bool, is_undo: bool, root: Path, as_json: bool) -> int:
    """Give all users of this host one folder to coordinate in. For its administrator.

    Writes a file for tmpfiles.d, from which /run/autogpu is made at every boot, makes that folder now, and
    proposes a policy for the host in /etc/autogpu/autogpu.toml, in which nothing is set. Running it twice
    changes nothing. Jobs that are running are not disturbed.
    """
    if is_check + is_print + is_undo > 1:
        raise click.UsageError("--check, --print and --undo exclude each other")
    host = hosts.Host(root)
    if is_print:
        _print_files(host, as_json)
        return 0
    steps = hosts.undo(host) if is_undo else ([] if is_check else hosts.setup(host))
    parts = host.parts()
    is_in_place = all(not part.problem or not part.is_required for part in parts)
    stays = any(action == "keep" for action, _, _ in steps)
    lines = [f"{_DONE[action]} {path}{f', which {why}' if why else ''}" for action, path, why in steps]
    if as_json:
        lines = [json.dumps(_as_values(host, steps, parts, is_in_place), indent=2)]
    elif is_undo and stays:
        lines.append(f"For the folder, run it again later: {host.command('--undo')}")
    elif is_undo:
        lines = lines or ["There is nothing to undo."]
    else:
        lines += _state(host, parts, is_in_place, is_check)
    click.echo("\n".join(lines))
    return 1 if stays or (is_check and not is_in_place) else 0


def _state(host: hosts.Host, parts: tuple[hosts.Part, ...], is_in_place: bool, is_check: bool) -> list[str]:
    lines = []
    for part in parts:
        lines += [f"{part.path} {part.problem or 'is in place'}."] if part.problem or is_check else []
        lines += [f"  {part.consequence}"] if part.consequence else []
    if any(part.action and part.is_required for part in parts):
        return [*lines, f"To set it up: {host.command()}"]
    if is_in_place:
        has_problem = any(part.problem for part in parts)
        lines.append("All that is required is in place." if has_problem else "All is in place.")
    return [*lines, f"Containers take part with -v {HOST_FOLDER}:{HOST_FOLDER}", f"To undo: {host.command('--undo')}"]


def _print_files(host: hosts.Host, as_json: bool) -> None:
    files = {str(host.tmpfiles): hosts.TMPFILES.decode(), str(host.policy): hosts.policy_text().decode()}
    text = "\n".join(f"# {path}\n{content}" for path, content in files.items())
    text += f"\n# then run: systemd-tmpfiles --create {host.tmpfiles}"
    click.echo(json.dumps({"version": 1, "files": files}, indent=2) if as_json else text)


def _as_values(host: hosts.Host, steps: list[hosts.Step], parts: tuple[hosts.Part, ...], is_in_place: bool) -> object:
    done = [{"action": action, "path": str(path), "why": why} for action, path, why in steps]
    names = ("name", "path", "problem", "consequence", "action", "required")
    return {
        "version": 1,
        "root": str(host.root),
        "in_place": is_in_place,
        "parts": [{**dict(zip(names, part)), "path": str(part.path), "in_place": not part.problem} for part in parts],
        "steps": done,
        "removed": [step["path"] for step in done if step["action"] == "remove"],
        "left": [step for step in done if step["action"] in ("leave", "keep")],
        "containers": f"-v {HOST_FOLDER}:{HOST_FOLDER}",
        "undo": host.command("--undo"),
    }
