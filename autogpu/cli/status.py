"""``autogpu status``: every GPU, who is on it, who waits, and what you would get."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from contextlib import contextmanager

import click
from rich.console import Console, Group
from rich.text import Text

from autogpu.cli.policy_options import duration, resolve_here
from autogpu.cli.screen import BAD, show
from autogpu.cli.status_screen import Wanted, fitted, frame_of, lines
from autogpu.reporting.text import listed, printable, user_name
from autogpu.status.json import to_json
from autogpu.status.snapshot import read_status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Iterator, Mapping

    from autogpu.status.model import HostStatus

# Of what --on prints as JSON.
VERSION = 1

FORMATS = ("text", "json", "prometheus")


@click.command(
    epilog="""Exit status: 1 if the driver is there and can't be read, with --on if a host did not answer, else 0.

\b
Examples:
  autogpu status
  autogpu status --json
  autogpu status --on lab1,lab2
  autogpu status --format prometheus > autogpu.prom   for node_exporter"""
)
@click.option("-w", "--watch", is_flag=True, help="Look again every two seconds, until q or Ctrl-C.")
@click.option("--interval", type=click.FloatRange(min=0.5), default=2.0, show_default=True, help="Seconds for --watch.")
@click.option("--mine", "is_mine", is_flag=True, help="Only the GPUs that you are on, and your places in the queue.")
@click.option("--user", metavar="NAME", help="Only those of this user.")
@click.option("--explain", "is_explained", is_flag=True, help="Add the ranking of all GPUs, and where the claims are.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --watch one object a line.")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="For a person, for a program as with --json, or metrics for node_exporter's textfile collector.",
)
@click.option(
    "--on",
    "hosts",
    metavar="HOSTS",
    help="These hosts instead, with commas between them: asks autogpu there over ssh, which must need no password.",
)
@click.option(
    "--remote-command",
    default="autogpu",
    show_default=True,
    metavar="TEXT",
    help="For --on: what starts autogpu there, as the remote shell reads it.",
)
@click.option(
    "--timeout",
    "timeout_s",
    callback=duration,
    default="10s",
    show_default=True,
    metavar="VALUE",
    help="For --on: how long each host may take.",
)
def status(
    watch: bool,
    interval: float,
    is_mine: bool,
    user: str | None,
    is_explained: bool,
    as_json: bool,
    form: str,
    hosts: str | None,
    remote_command: str,
    timeout_s: float,
) -> int:
    """Show every GPU: its memory, who holds it by a claim, what else is on it, who waits.

    In a bar, what is in use is full and what is claimed beyond that is half full. The last lines say what a script
    started here and now would get; --explain adds why not the other GPUs. Nothing is claimed by asking.
    """
    views = {"--watch": watch, "--mine": is_mine, "--user": user is not None, "--explain": is_explained}
    if hosts is not None:
        _use_alone("--on", {**views, "--format prometheus": form == "prometheus"})
        return _show_hosts(named(hosts), remote_command, timeout_s, as_json=as_json or form == "json")
    if form == "prometheus":
        _use_alone("--format prometheus", {**views, "--json": as_json})
        return _print_metrics()
    as_json = as_json or form == "json"
    if is_mine:
        _use_alone("--mine", {"--user": user is not None})
    wanted = Wanted(user_name(os.getuid()) if is_mine else user, is_explained)
    if watch:
        _watch(interval, wanted, as_json)
        return 0
    found = _read()
    if as_json:
        click.echo(json.dumps(to_json(found.of_user(wanted.user)), indent=2))
    else:
        _print(found, wanted, Console(highlight=False))
    return 1 if found.failure and found.has_driver else 0


def named(text: str) -> list[str]:
    """The hosts of a list with commas, each once.

    Raises:
        UsageError: One can't be a host.
    """
    hosts = list(dict.fromkeys(part.strip() for part in text.split(",")))
    for host in hosts:
        # `ssh` would take it for an option.
        if not host or host.startswith("-"):
            raise click.UsageError(f"--on: {host!r} is no host; write them as --on host1,host2")
    return hosts


def _show_hosts(hosts: list[str], command: str, timeout_s: float, *, as_json: bool) -> int:
    from autogpu.status.remote import ask

    answers = ask(hosts, command, timeout_s)
    if as_json:
        told = {a.host: {"problem": a.problem or None, "status": a.status and to_json(a.status)} for a in answers}
        click.echo(json.dumps({"version": VERSION, "hosts": told}, indent=2))
        return 0 if all(answer.status for answer in answers) else 1
    console = Console(highlight=False)
    for number, answer in enumerate(answers):
        if number:
            click.echo()
        if answer.status is None:
            show(console, Text.assemble((printable(answer.host, 64), "bold"), "  ", (answer.problem, BAD)))
        else:
            _print(answer.status, Wanted(remote=answer.host), console)
    return 0 if all(answer.status for answer in answers) else 1


def _use_alone(option: str, others: Mapping[str, bool]) -> None:
    """Refuse those of the others that are given.

    Raises:
        UsageError: One is.
    """
    given = [name for name, is_given in others.items() if is_given]
    if given:
        raise click.UsageError(f"{option} can't be combined with {listed(given)}", click.get_current_context())


def _print_metrics() -> int:
    from autogpu.status.prometheus import exposition

    # The format's encoding, whatever that of the terminal or of cron is.
    click.echo(exposition(_read()).encode("utf-8"), nl=False)
    # A driver that can't be read is among the metrics, which must reach the file then above all.
    return 0


def _read() -> HostStatus:
    return read_status(os.environ, resolve_here(os.environ))


def _print(found: HostStatus, wanted: Wanted, console: Console) -> None:
    for line in lines(found, frame_of(console), wanted):
        show(console, line)


def _watch(interval_s: float, wanted: Wanted, as_json: bool) -> None:
    console = Console(highlight=False)
    try:
        if as_json or not console.is_terminal:
            while True:
                _print_once(console, wanted, as_json)
                time.sleep(interval_s)
        from rich.live import Live

        with _keys() as is_left_within, Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(Group(*fitted(_read(), frame_of(console), console.height, wanted)), refresh=True)
                if is_left_within(interval_s):
                    return
    except KeyboardInterrupt:  # its ordinary end
        pass


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Keys as they are pressed: whether q is, within so many seconds."""
    if not sys.stdin.isatty():
        yield _sleep
        return
    import termios  # not on Windows
    import tty

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)

    def is_left_within(seconds: float) -> bool:
        # Again and again: a shell takes it back while this is stopped by Ctrl-Z. What was typed meanwhile stays.
        tty.setcbreak(keyboard, termios.TCSADRAIN)
        until_s = time.monotonic() + seconds
        while select.select([keyboard], [], [], max(0.0, until_s - time.monotonic()))[0]:
            key = os.read(keyboard, 1)
            if key in (b"q", b"Q", b""):
                return True
        return False

    try:
        yield is_left_within
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _print_once(console: Console, wanted: Wanted, as_json: bool) -> None:
    found = _read()
    if as_json:
        click.echo(json.dumps(to_json(found.of_user(wanted.user))))
        return
    _print(found, wanted, console)
    click.echo()
