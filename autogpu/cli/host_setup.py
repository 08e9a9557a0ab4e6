"""``autogpu host-setup``: what root does once per host, so that all its users coordinate."""

from __future__ import annotations

from pathlib import Path
from typing import Sequence

import click

from autogpu import host_setup as hosts
from autogpu.lease.folder import HOST_FOLDER

_DONE = {"write": "wrote", "make": "made", "repair": "repaired"}


@click.command(
    "host-setup",
    epilog="""\b
Examples:
  sudo $(command -v autogpu) host-setup
  autogpu host-setup --check""",
)
@click.option("--check", "is_check", is_flag=True, help="Change nothing, as any user; status 0 if all is in place.")
@click.option("--print", "is_print", is_flag=True, help="Change nothing; print what it would write and run.")
@click.option("--root", type=click.Path(path_type=Path), default="/", metavar="DIR", help="The top of an image.")
def host_setup(is_check: bool, is_print: bool, root: Path) -> int:
    """Give all users of this host one folder to coordinate in. For its administrator.

    Writes a file for tmpfiles.d, from which /run/autogpu is made at every boot, makes that folder now, and
    proposes a policy for the host in /etc/autogpu/autogpu.toml, in which nothing is set. Running it twice
    changes nothing. Jobs that are running are not disturbed.
    """
    if is_check and is_print:
        raise click.UsageError("--check and --print exclude each other")
    host = hosts.Host(root)
    if is_print:
        for path, content in ((host.tmpfiles, hosts.TMPFILES), (host.policy, hosts.policy_text())):
            click.echo(f"# {path}\n{content.decode()}")
        click.echo(f"# then run: systemd-tmpfiles --create {host.tmpfiles}")
        return 0
    done = [] if is_check else hosts.setup(host)
    parts = host.parts()
    is_in_place = all(not part.problem or not part.required for part in parts)
    for part in done:
        click.echo(f"{_DONE[part.action]} {part.path}{part.consequence and f', which {part.consequence}'}")
    click.echo("\n".join(_state(host, parts, is_in_place, is_check)))
    return int(is_check and not is_in_place)


def _state(host: hosts.Host, parts: Sequence[hosts.Part], is_in_place: bool, is_check: bool) -> list[str]:
    lines = []
    for part in parts:
        lines += [f"{part.path} {part.problem or 'is in place'}."] if part.problem or is_check else []
        lines += [f"  {part.consequence}"] if part.consequence else []
    if any(part.action and part.required for part in parts):
        return [*lines, f"To set it up: {host.command()}"]
    if is_in_place:
        has_problem = any(part.problem for part in parts)
        lines.append("All that is required is in place." if has_problem else "All is in place.")
    return [*lines, f"Containers take part with -v {HOST_FOLDER}:{HOST_FOLDER}"]
