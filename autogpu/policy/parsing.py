"""The contents of a policy file: parse its TOML, find the line of each key, and recognize usual mistakes."""

from __future__ import annotations

import re
import sys
from typing import Any, Mapping, Sequence

from autogpu.errors import raise_if_from_script
from autogpu.frozen import Value
from autogpu.policy.kinds import Refused
from autogpu.policy.model import BY_NAME, Key, Mistake, UnreadableFile
from autogpu.text import printable

MOST_DOTS = DEEPEST_BRACKETS = 100

_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\\\n]*"|'[^'\n]*')"""
_LONG_NAME = rf"(?<![\w-])(?:{_PART}[ \t]*\.[ \t]*){{{MOST_DOTS + 1}}}"
_HEADER = re.compile(r"^[ \t]*\[+[ \t]*([^][\n]+)", re.MULTILINE)

# The table of autogpu in a file that also has tables of other programs.
_SHARED_TABLE = ("tool", "autogpu")


class Contents(Value):
    """The table of autogpu in a policy file, and the text of the file."""

    table: Mapping[str, Any]
    text: str


def parse(content: bytes, *, is_shared: bool) -> Contents:
    """Parse a policy file.

    Args:
        is_shared: True for a file that also has tables of other programs.

    Raises:
        UnreadableFile: The file is not valid TOML, or has no table of autogpu.
    """
    table, text = _parsed(content, is_shared=is_shared)
    path = _SHARED_TABLE if is_shared else ()
    for name in path:
        table = table.get(name) if isinstance(table, dict) else None
    if not isinstance(table, dict):
        raise UnreadableFile(Mistake.NO_TABLE)
    return Contents(table, text)


def line_of(text: str, name: str) -> int | None:
    """Return the line of the key or table with this name; ``None`` if no line or several lines match."""
    key = rf"""["']?{re.escape(name)}["']?[ \t]*"""
    at_the_start = rf"(?:[^=#\n]*[.\[ \t])?{key}[=.\]]"
    in_a_table = rf"[^#\n]*[{{,.][ \t]*{key}="
    found = [*re.finditer(f"^(?:{at_the_start}|{in_a_table})", text, re.MULTILINE)]
    return text.count("\n", 0, found[0].start()) + 1 if len(found) == 1 else None


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
        raise UnreadableFile(Mistake.NO_PARSER) from None
    except (ValueError, RecursionError) as error:
        raise_if_from_script(error)
        found = re.match(r"(.*) \(at line ([0-9]+), column [0-9]+\)$", str(error), re.DOTALL)
        why, at = (found.group(1), int(found.group(2))) if found else (str(error), None)
        lines = content.decode("utf-8-sig", "replace").split("\n")[: at or 0]
        raise _not_toml(lines, why, at, is_shared=is_shared) from None


def _refuse_excess(text: str) -> None:
    """Raise :class:`UnreadableFile` for a text that could take a parser seconds, or crash the process."""
    depth = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth = depth + 1 if bracket in "[{" else max(0, depth - 1)
        if depth > DEEPEST_BRACKETS:
            # A compiled parser could overflow the C stack, which crashes the process without an exception.
            raise UnreadableFile(Mistake.TOO_DEEP)
    if text.count(".") > MOST_DOTS and re.search(_LONG_NAME, text):
        # The time of the parsers grows with the square of the number of dots.
        raise UnreadableFile(Mistake.TOO_MANY_DOTS)


def _not_toml(lines: Sequence[str], why: str, at: int | None, *, is_shared: bool) -> UnreadableFile:
    """Return the error for the mistake in the last of ``lines``. Its kind is ``NOT_TOML`` if it is not a usual one.

    Args:
        lines: The file up to the line at which the parser stopped; empty if the parser does not report it.
        why: The parser's reason.
        at: The number of that line.
        is_shared: True for a file that also has tables of other programs.
    """
    line = lines[-1] if lines else ""
    name, _, value = (part.strip() for part in line.partition("#")[0].partition("="))
    if why.startswith(("Cannot overwrite", "Cannot declare")):
        return UnreadableFile(Mistake.WRITTEN_TWICE, at, written=printable(name, 64))
    tables = _HEADER.findall("\n".join(lines))
    is_ours = not is_shared or re.match(r"tool\.autogpu\b", tables[-1] if tables else "")
    key = BY_NAME.get(name.rpartition(".")[2]) if is_ours else None
    if key and re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name) and re.fullmatch(r"""[^][{}"'=]{1,60}""", value):
        meant = _meant(key, value.strip("“”"))
        mistake = Mistake.UNQUOTED if meant else Mistake.REFUSED_UNQUOTED
        return UnreadableFile(mistake, at, key=key.dotted, written=printable(value), nearest=meant, detail=name)
    return UnreadableFile(Mistake.NOT_TOML, at, detail=printable(why))


def _meant(key: Key, text: str) -> str:
    """Return a value without quotes as TOML, or the nearest allowed value; ``""`` if none is similar."""
    try:
        return key.written(key.kind.read(text))
    except Refused:
        return key.kind.nearest(text)
