"""``autogpu status``: the GPUs of this host or of other hosts, with their jobs, the queue and a preview."""

from __future__ import annotations

import json
import os
import re
import select
import sys
import time
from contextlib import contextmanager, suppress
from functools import partial
from typing import Callable, Iterator, Mapping, Sequence

import click
from rich.console import Console, Group
from rich.text import Text

from autogpu.cli.request import resolve_here
from autogpu.cli.screen import show_line
from autogpu.cli.status_screen import ORDERS, PIPE_WIDTH, View, fitted, help_lines, page
from autogpu.errors import AutoGpuError
from autogpu.frozen import replace
from autogpu.reporting.remote import remote_problem
from autogpu.status.model import Answer, HostStatus
from autogpu.status.snapshot import read_status
from autogpu.text import listed
from autogpu.users import user_name


@click.command(
    epilog="""Exit status: 1 if the driver is installed and can't be read, or if a host of --on did not answer; else 0.
With --format it is 0 in these cases too, because the output shows the problem.

\b
Examples:
  autogpu status
  autogpu status --json
  autogpu status --on lab1,lab2 --mine
  autogpu status --format prometheus > autogpu.prom
  autogpu status --on lab1,lab2 --format html > lab.html"""
)
@click.option("-w", "--watch", is_flag=True, help="Update the page every --interval seconds; press h for help.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.5),
    default=2.0,
    show_default=True,
    help="Seconds between two updates of --watch.",
)
@click.option(
    "--mine", "is_mine", is_flag=True, help="Show only GPUs with your jobs or processes, and your places in the queue."
)
@click.option(
    "--user", metavar="NAME", help="Show only the GPUs and queue places of this user, named as in the output."
)
@click.option(
    "--explain",
    "is_explained",
    is_flag=True,
    help="Add the ranking of all GPUs and the folder of the claims; with --on, show the whole page of each host.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["prometheus", "html"]),
    help="Print metrics for node_exporter's textfile collector (prometheus), or a web page (html). With --on, one page "
    "shows all hosts.",
)
@click.option(
    "--on",
    "hosts",
    metavar="HOSTS",
    multiple=True,
    help="Show these hosts instead, separated by commas. autogpu runs there over ssh, which must not ask for a "
    "password.",
)
@click.option(
    "--remote-command",
    default="autogpu",
    show_default=True,
    metavar="TEXT",
    help="Use this shell command to start autogpu on the hosts of --on.",
)
def status(
    watch: bool,
    interval: float,
    is_mine: bool,
    user: str | None,
    is_explained: bool,
    as_json: bool,
    form: str | None,
    hosts: Sequence[str],
    remote_command: str,
) -> int:
    """Show each GPU with its memory, jobs and processes, and the queue.

    A full block in a bar is memory in use; a half-full block is memory claimed beyond that. The last lines show the
    GPUs that a script started here now would get. --explain adds why the other GPUs were not chosen. This command
    claims no GPU.
    """
    if form:
        views = {"--watch": watch, "--mine": is_mine, "--user": user is not None, "--explain": is_explained}
        is_on_others = bool(hosts) and form == "prometheus"
        _use_alone(f"--format {form}", {**views, "--json": as_json, "--on": is_on_others})
    if is_mine:
        _use_alone("--mine", {"--user": user is not None})
    console = Console(highlight=False)
    width = console.width if console.is_terminal else PIPE_WIDTH
    view = View(width, user_name(os.getuid()) if is_mine else user, is_explained)
    ask = _asking(hosts, remote_command)
    if form:
        # Both formats are UTF-8, whatever the encoding of the terminal or of cron is.
        click.echo(_formatted(form, ask).encode("utf-8"), nl=False)
        # Return 0 even after a failure: the output reports it, and `> new && mv new page` must then publish it.
        return 0
    if watch:
        _use_alone("--watch", {"--json": as_json})
        with suppress(KeyboardInterrupt):  # the user's way to leave
            _watch(ask, interval, view, console)
        return 0
    answers = ask()
    if as_json:
        click.echo(json.dumps(_as_values(answers, view.user), indent=2))
    else:
        for line in page(answers, view):
            show_line(console, line)
    return int(any(map(_has_failed, answers)))


def _use_alone(option: str, others: Mapping[str, bool]) -> None:
    given = [name for name, is_given in others.items() if is_given]
    if given:
        raise click.UsageError(f"{option} can't be combined with {listed(given)}")


def _asking(hosts: Sequence[str], remote_command: str) -> Callable[[], Sequence[Answer]]:
    """Return a function that asks these hosts for their status, or that reads this host if ``hosts`` is empty."""
    if not hosts:
        return _ask_here
    from autogpu.status import remote

    # Host names are not checked here: ssh refuses invalid names, and after its `--` it reads no options.
    each_once = list(dict.fromkeys(re.findall(r"[^,\s]+", ",".join(hosts))))
    if not each_once:
        raise click.BadParameter("expected at least one host, such as lab1", param_hint="--on")
    if not remote.has_ssh():
        raise AutoGpuError("this machine has no ssh", remedy="install the OpenSSH client")
    return partial(remote.ask_hosts, each_once, remote_command)


def _ask_here() -> Sequence[Answer]:
    return (Answer("", _status_here()),)


def _status_here() -> HostStatus:
    return read_status(os.environ, resolve_here({}))


def _formatted(form: str, ask: Callable[[], Sequence[Answer]]) -> str:
    if form == "html":
        from autogpu.status.web_page import web_page

        asked_s = time.time()
        return web_page(ask(), asked_s)
    from autogpu.status.prometheus import exposition

    return exposition(_status_here())


def _has_failed(answer: Answer) -> bool:
    status = answer.status
    # A host of --on has answered even if its driver can't be read.
    return status is None or bool(not answer.host and status.failure and status.has_driver)


def _as_values(answers: Sequence[Answer], user: str | None) -> object:
    told = {each.host: each.status and each.status.of_user(user).to_json() for each in answers}
    problems = {each.host: each.problem and remote_problem(each.problem) for each in answers}
    hosts = {each.host: {"problem": problems[each.host], "status": told[each.host]} for each in answers}
    return told.get("") or {"version": 1, "hosts": hosts}


def _watch(ask: Callable[[], Sequence[Answer]], interval_s: float, view: View, console: Console) -> None:
    if not (console.is_terminal and sys.stdin.isatty()):
        raise click.UsageError("--watch needs a terminal for input and output")
    from rich.live import Live

    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        answers = ask()
        until_s = time.monotonic() + interval_s
        is_helping = False
        key = ""
        while key != "q":
            keys = f"q: quit, s: sort ({view.order}), h: help"
            width = console.width
            height = console.height - 1
            lines = help_lines(width, height) if is_helping else fitted(answers, replace(view, width=width), height)
            live.update(Group(*lines, Text(keys, style="reverse")), refresh=True)
            key = pressed(max(0.0, until_s - time.monotonic()))
            if not key:
                answers = ask()
                until_s = time.monotonic() + interval_s
            is_helping = not is_helping if key == "h" else is_helping and not key
            if key == "s":
                view = replace(view, order=ORDERS[(ORDERS.index(view.order) + 1) % len(ORDERS)])


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits for a key, at most the given seconds, and returns it; ``""`` if none was pressed."""
    import termios  # missing on Windows
    import tty

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)

    def pressed(seconds: float) -> str:
        # Set the mode for each key: after Ctrl-Z the shell resets it. TCSADRAIN keeps keys that were typed meanwhile.
        tty.setcbreak(keyboard, termios.TCSADRAIN)
        if not select.select([keyboard], [], [], seconds)[0]:
            return ""
        return os.read(keyboard, 1).decode("latin-1").lower() or "q"  # at the end of the input

    try:
        yield pressed
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
