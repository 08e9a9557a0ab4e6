"""On which line a key of a TOML file stands, which the standard parser does not tell."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Sequence

_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\\\n]*"|'[^'\n]*')"""
_DOTTED = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_SPACE = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_HEADER = re.compile(rf"\[(\[)?[ \t]*({_DOTTED})[ \t]*\]\]?")
_ASSIGNMENT = re.compile(rf"({_DOTTED})[ \t]*=[ \t]*")
# Whatever brackets, quotes and comments can hide; a multi-line string may end in up to five quotes.
_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?"""{1,3}|'
    r"'''.*?'''{1,3}|"
    r'"(?:\\.|[^"\\\n])*"|'
    r"'[^'\n]*'|"
    r"#[^\n]*|[\[{]|[\]}]|\n|[^\"'#\[\]{}\n]+|.",
    re.DOTALL,
)


class KeyLines:
    """The lines of the keys of one file that the TOML parser accepted.

    A name that the scanner can't follow, such as one with an escape, has no line: none is better than a wrong
    one.
    """

    def __init__(self, text: str) -> None:
        self._assigned: dict[tuple[str, ...], int | None] = {}
        self._headers: dict[tuple[str, ...], int | None] = {}
        self._scan(text)

    def of(self, path: Sequence[str]) -> int | None:
        """The line where the key or table ``path`` is written, or the inline table that holds it."""
        path = tuple(path)
        if path in self._assigned or path in self._headers:
            return self._assigned.get(path, self._headers.get(path))
        for end in range(len(path) - 1, 0, -1):
            if path[:end] in self._assigned:
                return self._assigned[path[:end]]
        return None

    def _scan(self, text: str) -> None:
        table: tuple[str, ...] = ()
        at, line = 0, 1
        while True:
            start = at
            at = _end(_SPACE, text, at)
            line += text.count("\n", start, at)
            header = _HEADER.match(text, at)
            assignment = None if header else _ASSIGNMENT.match(text, at)
            if header:
                table = _parts(header.group(2))
                # Tables of an array share their names, so no line is certain for what stands in them.
                _note(self._headers, table, None if header.group(1) else line)
                at = header.end()
            elif assignment:
                _note(self._assigned, table + _parts(assignment.group(1)), line)
                start, at = at, _end_of_value(text, assignment.end())
                line += text.count("\n", start, at)
            else:
                return


def deepest_name(text: str) -> int:
    """The most dots in one name of a file that need not be valid TOML."""
    deepest = dots = 0
    for token in _TOKEN.finditer(text):
        piece = token.group()
        if piece[0] in "[]{}\n":
            dots = 0
        elif piece[0] not in "\"'#":
            # A name ends at "=" and ","; strings may be parts of it.
            first, *others = re.split("[=,]", piece)
            deepest = max(deepest, dots + first.count("."), *(other.count(".") for other in others))
            dots = others[-1].count(".") if others else dots + first.count(".")
    return deepest


def _note(lines: dict[tuple[str, ...], int | None], path: tuple[str, ...], line: int | None) -> None:
    lines[path] = None if path in lines else line


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part[1:-1] if part[0] in "\"'" else part for part in re.findall(_PART, dotted))


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


def _end_of_value(text: str, at: int) -> int:
    depth = 0
    for token in _TOKEN.finditer(text, at):
        first = token.group()[0]
        if first in "[{":
            depth += 1
        elif first in "]}":
            depth -= 1
        elif first == "\n" and depth <= 0:
            return token.start()
    return len(text)
