"""``autogpu status --on``: the page of ``autogpu status`` for several hosts."""

from __future__ import annotations

import json

import click
from rich.console import Console
from rich.text import Text

from autogpu.cli import status_screen
from autogpu.cli.screen import BAD, show
from autogpu.cli.status_table import Frame
from autogpu.reporting.text import printable
from autogpu.status.json import to_json
from autogpu.status.remote import ask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, Sequence

    from autogpu.status.remote import Answer

VERSION = 1


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


def show_status(hosts: Sequence[str], command: str, timeout_s: float, *, as_json: bool) -> int:
    """Print the status of ``hosts``; 1 if one of them did not answer, else 0."""
    answers = ask(hosts, command, timeout_s)
    if as_json:
        click.echo(
            json.dumps({"version": VERSION, "hosts": {each.host: _as_values(each) for each in answers}}, indent=2)
        )
    else:
        console = Console(highlight=False)
        for line in lines(answers, status_screen.frame_of(console)):
            show(console, line)
    return 0 if all(answer.status for answer in answers) else 1


def lines(answers: Sequence[Answer], frame: Frame) -> Iterator[Text]:
    """The screen, line by line, as :func:`autogpu.cli.status_screen.lines`."""
    for number, answer in enumerate(answers):
        if number:
            yield Text()
        if answer.status is None:
            yield Text.assemble((printable(answer.host, 64), "bold"), "  ", (answer.problem, BAD))
        else:
            yield from status_screen.lines(answer.status, frame, status_screen.Wanted(remote=answer.host))


def _as_values(answer: Answer) -> dict[str, object]:
    return {"problem": answer.problem or None, "status": answer.status and to_json(answer.status)}
