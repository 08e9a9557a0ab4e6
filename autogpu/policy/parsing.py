"""The contents of a policy file: parse its TOML, find the line of each key, and recognize common mistakes."""

from __future__ import annotations

import re
import sys
from typing import Any, Iterator, Mapping, Sequence

from autogpu.errors import raise_if_from_script
from autogpu.frozen import Value
from autogpu.policy.kinds import Refused
from autogpu.policy.model import BY_NAME, Key, Mistake, UnusableFile
from autogpu.text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Tuple

    NamePath = Tuple[str, ...]

MOST_DOTS = DEEPEST_BRACKETS = 100

# Patterns for a TOML string on one line: in double quotes without escape sequences, in single quotes, and in double
# quotes with or without escape sequences.
_PLAIN = r'"[^"\\\n]*"'
_LITERAL = r"'[^'\n]*'"
_BASIC = r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"'

# A dotted name with more than MOST_DOTS dots.
_LONG_NAME = rf"(?<![\w-])(?:(?:[A-Za-z0-9_-]+|{_PLAIN}|{_LITERAL})[ \t]*\.[ \t]*){{{MOST_DOTS + 1}}}"
_HEADER = re.compile(r"^[ \t]*\[+[ \t]*([^][\n]+)", re.MULTILINE)

# The table of autogpu in a file that also has tables of other programs.
_SHARED_TABLE = ("tool", "autogpu")

# The start of a table header, of a key with its value, or of a comment.
_PART = rf"(?:[A-Za-z0-9_-]+|{_BASIC}|{_LITERAL})"
_START = re.compile(rf"[ \t]*(?P<bracket>\[*)[ \t]*(?P<name>(?:{_PART}(?:[ \t]*\.[ \t]*{_PART})*)?)")

# Strings and comments are tokens, so that brackets and line ends in them don't count.
_TOKEN = re.compile(
    r'"""[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""+'
    r"|'''[^']*(?:'(?!'')[^']*)*'''+"
    rf"|{_BASIC}|{_LITERAL}|[][{{}}]|(?P<end>(?:#[^\n]*)?\n\s*)",
    re.DOTALL,
)


class Contents(Value):
    """The table of autogpu in a policy file, and the lines of the file's keys and tables.

    A path has the names from the top of the file to a key or table: ``("select", "count")``.

    Attributes:
        path: The path of the table; ``()`` if all of the file is autogpu's.
        lines: The line of each key and table, from 1, keyed by path. Keys in inline tables are missing.
        value_lines: The line of each key whose whole value is on one line, keyed by path.
    """

    table: Mapping[str, Any]
    path: NamePath
    lines: Mapping[NamePath, int]
    value_lines: Mapping[NamePath, int]

    def line_of(self, names: NamePath) -> int | None:
        """Return the line of a key or table in ``table``; ``None`` for a key in an inline table of several lines."""
        path = self.path + names
        if path in self.lines:
            return self.lines[path]
        # A key in an inline table is in the value of another key.
        found = (self.value_lines.get(path[:length]) for length in range(len(path)))
        return next(filter(None, found), None)


def parse(content: bytes, *, is_shared: bool) -> Contents:
    """Parse a policy file.

    Args:
        is_shared: True for a file that also has tables of other programs.

    Raises:
        UnusableFile: The file is not valid TOML, or has no table of autogpu.
    """
    table, text = _parsed(content, is_shared=is_shared)
    path = _SHARED_TABLE if is_shared else ()
    for name in path:
        table = table.get(name) if isinstance(table, dict) else None
    if not isinstance(table, dict):
        raise UnusableFile(Mistake.NO_TABLE)
    return Contents(table, path, *lines_of(text))


def lines_of(text: str) -> tuple[Mapping[NamePath, int], Mapping[NamePath, int]]:
    """Return ``lines`` and ``value_lines`` of :class:`Contents` for a text that is valid TOML."""
    lines: dict[NamePath, int] = {}
    value_lines: dict[NamePath, int] = {}
    table: NamePath = ()
    for line, start, is_one_line in _statements(text):
        path = _path(start["name"])
        if start["bracket"]:
            table = path
        elif path:
            path = table + path
            if is_one_line:
                value_lines[path] = line
        # If a name occurs on several lines, keep the first. If a table has a line, the tables around it have one too.
        while path and path not in lines:
            lines[path] = line
            path = path[:-1]
    return lines, value_lines


def _statements(text: str) -> Iterator[tuple[int, Any, bool]]:
    """Yield three values for each table header and each key with its value.

    These are the number of its first line, the match of ``_START`` there, and True if it ends on that line.
    """
    line, begin, depth = 1, 0, 0
    for token in _TOKEN.finditer(text + "\n"):
        if token[0] in ("[", "{"):
            depth += 1
        elif token[0] in ("]", "}"):
            depth -= 1
        elif token["end"] and depth == 0:
            yield line, _START.match(text, begin), "\n" not in text[begin : token.start()]
            line, begin = line + text.count("\n", begin, token.end()), token.end()


def _path(name: str) -> NamePath:
    # A part in quotes is a TOML string. It can have escape sequences, so let the parser read it.
    parts = re.findall(_PART, name)
    return tuple(_loads(f"part = {part}")["part"] if part[0] in "\"'" else part for part in parts)


def _loads(text: str) -> Any:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        from autogpu._vendor import tomli as tomllib  # type: ignore[attr-defined]
    return tomllib.loads(text)


def _parsed(content: bytes, *, is_shared: bool) -> tuple[Any, str]:
    try:
        # Editors on Windows begin a file with a byte order mark, which TOML does not allow.
        text = content.decode("utf-8-sig")
        _refuse_excess(text)
        # The parser reports no line number for a mistake in a last line without a line end.
        return _loads(text + "\n"), text
    except ImportError as error:
        raise_if_from_script(error)
        raise UnusableFile(Mistake.NO_PARSER) from None
    except (ValueError, RecursionError) as error:
        raise_if_from_script(error)
        found = re.match(r"(.*) \(at line ([0-9]+), column [0-9]+\)$", str(error), re.DOTALL)
        why, at = (found.group(1), int(found.group(2))) if found else (str(error), None)
        lines = content.decode("utf-8-sig", "replace").split("\n")[: at or 0]
        raise _not_toml(lines, why, at, is_shared=is_shared) from None


def _refuse_excess(text: str) -> None:
    """Raise :class:`UnusableFile` for a text that could take a parser seconds, or crash the process."""
    depth = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth = depth + 1 if bracket in "[{" else max(0, depth - 1)
        if depth > DEEPEST_BRACKETS:
            # A compiled parser could overflow the C stack, which crashes the process without an exception.
            raise UnusableFile(Mistake.TOO_DEEP)
    # The time of the parsers grows with the square of the number of dots. Replace escape sequences in names, which the
    # pattern does not match.
    if text.count(".") > MOST_DOTS and re.search(_LONG_NAME, re.sub(r"\\[^'\n]", "_", text)):
        raise UnusableFile(Mistake.TOO_MANY_DOTS)


def _not_toml(lines: Sequence[str], why: str, at: int | None, *, is_shared: bool) -> UnusableFile:
    """Return the error for the mistake in the last of ``lines``. It is ``NOT_TOML`` unless the mistake is a common one.

    Args:
        lines: The file up to the line at which the parser stopped; empty if the parser does not report it.
        why: The parser's reason.
        at: The number of that line.
        is_shared: True for a file that also has tables of other programs.
    """
    line = lines[-1] if lines else ""
    name, _, value = (part.strip() for part in line.partition("#")[0].partition("="))
    if why.startswith(("Cannot overwrite", "Cannot declare")):
        return UnusableFile(Mistake.WRITTEN_TWICE, at, written=printable(name, 64))
    tables = _HEADER.findall("\n".join(lines))
    is_ours = not is_shared or re.match(r"tool\.autogpu\b", tables[-1] if tables else "")
    key = BY_NAME.get(name.rpartition(".")[2]) if is_ours else None
    if key and re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name) and re.fullmatch(r"""[^][{}"'=]{1,60}""", value):
        meant = _meant(key, value.strip("“”"))
        mistake = Mistake.UNQUOTED if meant else Mistake.REFUSED_UNQUOTED
        return UnusableFile(mistake, at, key=key.dotted, written=printable(value), nearest=meant, detail=name)
    return UnusableFile(Mistake.NOT_TOML, at, detail=printable(why))


def _meant(key: Key, text: str) -> str:
    """Return the TOML for a value that lacks its quotes, or the nearest allowed value; ``""`` if none is similar."""
    try:
        return key.written(key.kind.read(text))
    except Refused:
        return key.kind.nearest(text)
