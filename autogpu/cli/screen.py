"""How the verbs print for a person: folded and in colour on a terminal, plain and whole in a pipe."""

from __future__ import annotations

import click
from rich.console import Console
from rich.text import Text

# The colours must be readable on dark and on light: yellow on white and grey on black are not, whatever the theme.
GOOD = "green"
BAD = "red"
STANDS_OUT = "bold reverse"

_ANY_CONSOLE = Console()


def folded(line: Text, width: int, indent: int | None = None) -> list[Text]:
    """``line`` in pieces that fit: those behind the first are indented, by two more than the line unless told."""
    if line.cell_len <= width:
        return [line]
    if indent is None:
        indent = len(line.plain) - len(line.plain.lstrip()) + 2
    indent = min(indent, width // 2)
    first, *others = line[indent:].wrap(_ANY_CONSOLE, width - indent)
    return [line[:indent] + first, *(Text(" " * indent) + other for other in others)]


def show_line(console: Console, line: Text, indent: int | None = None) -> None:
    if not console.is_terminal:
        click.echo(line.plain)
        return
    for piece in folded(line, console.width, indent):
        console.print(piece, soft_wrap=True)
