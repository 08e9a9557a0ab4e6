"""A screen of a terminal as an SVG file that any viewer draws alike: no font is fetched, and bars are shapes. Pure."""

from __future__ import annotations

import re
from html import escape
from typing import Iterator, Sequence

from rich.console import Console
from rich.style import Style
from rich.terminal_theme import MONOKAI
from rich.text import Text

# Of one character; the font's own widths differ by less, and each word has its place.
WIDTH, HEIGHT, FONT = 9.0, 20.0, 15
MARGIN = 14.0
FONTS = "DejaVu Sans Mono, Menlo, Consolas, Liberation Mono, monospace"
BLOCKS = {"█": 1.0, "▒": 0.5, "░": 0.18}
PIECE = re.compile(r"█+|▒+|░+|[^\s█▒░]+(?: [^\s█▒░]+)*")


def svg(lines: Sequence[Text], columns: int) -> str:
    """The picture of these lines, which have at most so many columns."""
    width, height = columns * WIDTH + 2 * MARGIN, len(lines) * HEIGHT + 2 * MARGIN
    drawn = [part for row, line in enumerate(lines) for part in _line(line, MARGIN + row * HEIGHT)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
            f'height="{height:g}" font-family="{FONTS}" font-size="{FONT}" fill="{_hex(MONOKAI.foreground_color)}">',
            f'<rect width="100%" height="100%" rx="8" fill="{_hex(MONOKAI.background_color)}"/>',
            *drawn,
            "</svg>",
            "",
        ]
    )


def _line(line: Text, top: float) -> Iterator[str]:
    column, console = 0, Console(color_system="truecolor", force_terminal=True)
    for words, own, _ in line.render(console):
        words, style = words.replace("\n", ""), console.get_style(line.style) + (own or Style())
        front = _hex(style.color.get_truecolor(MONOKAI)) if style.color else ""
        if style.reverse:
            front, back = _hex(MONOKAI.background_color), front or _hex(MONOKAI.foreground_color)
            yield _box(column, len(words), top + 1, HEIGHT - 2, back, 1)
        for piece in PIECE.finditer(words):
            yield _piece(piece.group(), column + piece.start(), top, front, is_bold=bool(style.bold))
        column += len(words)


def _piece(words: str, column: int, top: float, front: str, *, is_bold: bool) -> str:
    if words[0] in BLOCKS:
        return _box(column, len(words), top + 3, HEIGHT - 6, front, BLOCKS[words[0]])
    colour = f' fill="{front}"' if front else ""
    weight = ' font-weight="bold"' if is_bold else ""
    return (
        f'<text x="{MARGIN + column * WIDTH:g}" y="{top + 15:g}" textLength="{len(words) * WIDTH:g}"{colour}{weight}>'
        f"{escape(words)}</text>"
    )


def _box(column: int, cells: int, top: float, height: float, colour: str, opacity: float) -> str:
    return (
        f'<rect x="{MARGIN + column * WIDTH:g}" y="{top:g}" width="{cells * WIDTH:g}" height="{height:g}"'
        + (f' fill="{colour}"' if colour else "")
        + (f' opacity="{opacity:g}"/>' if opacity < 1 else "/>")
    )


def _hex(colour: Sequence[int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)
