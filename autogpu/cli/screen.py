"""Output of the verbs for people: folded and coloured on a terminal, plain and unfolded in a pipe."""

from __future__ import annotations

import click
from rich.console import Console
from rich.text import Text

# These colours can be read on dark and on light backgrounds. Yellow on white and grey on black can't, in any theme.
GOOD = "green"
BAD = "red"
STANDS_OUT = "bold reverse"

_ANY_CONSOLE = Console()


def folded(line: Text, width: int, indent: int | None = None) -> list[Text]:
    """Return ``line`` in pieces of at most ``width`` columns.

    Args:
        indent: Columns to indent all pieces but the first; by default two more than the line's own indent.
    """
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
