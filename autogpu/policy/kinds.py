"""The kinds of values that a policy's keys have, such as a size or a duration.

Environment variables and command-line options hold a value as text. A policy file may hold the same text, or a TOML
value. This module does not depend on keys, files or layers.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import Any, Callable, Collection, Mapping

from autogpu.errors import raise_if_from_script
from autogpu.frozen import Value
from autogpu.text import exact_span, printable

SMALLEST_BYTES = 1024**2
LARGEST_BYTES = 1024**5
LONGEST_S = 365 * 86400.0

# Each pattern accepts only a few digits, because int() takes long for thousands of digits, and raises an error for more
# than Python allows.
_SIZE = r"([0-9]{1,16}(?:\.[0-9]{1,6})?) ?([A-Za-z]{1,3})"
_PERCENT = r"([0-9]{1,3}(?:\.[0-9]{1,3})?) ?%"
_NUMBER = r"[0-9]{1,7}(?:\.[0-9]{1,3})?"
# Durations as people write them, and as autogpu prints them: 30m, 30 min, 2 hours, 1h 30m.
_DURATION = (
    rf"(?=[0-9])(?:({_NUMBER}) ?d(?:ays?)?)? ?(?:({_NUMBER}) ?h(?:ours?|rs?)?)? ?"
    rf"(?:({_NUMBER}) ?m(?:in(?:ute)?s?)?)? ?(?:({_NUMBER}) ?s(?:ec(?:ond)?s?)?)?"
)
# Slurm and Docker write "8G" for 8 * 2**30 bytes, and Kubernetes writes "8Gi". So autogpu reads both as that size.
# Only "GB" is decimal.
_UNITS = {
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", 1)},
    **{prefix + end: 1024**power for power, prefix in enumerate("kmgt", 1) for end in ("", "i", "ib")},
}
_INTEGER = r"[+-]?[0-9]{1,9}"

# An entry of a list of GPUs is an index, a MIG instance ("0:1"), a range of indices ("0-3"), or a name. A name may
# begin with a number only if it names a MIG profile ("1g.5gb", "1c.3g.20gb", "1g.*"). People who write "3090" nearly
# always mean a card's name, not an index. So autogpu refuses it.
_DEVICE = "[0-9]{1,3}(?:[:-][0-9]{1,3})?|[1-9][0-9]?[cg](?:[.*+][0-9A-Za-z.*+]*)?|(?![0-9+-])[^,]{1,128}"

_ON = ("1", "true", "yes", "on")
_OFF = ("0", "false", "no", "off")
NONE = "none"
DEFAULT_GROUP = "default"

LONGEST_NAME = 64


class Refused(Exception):
    """A policy value is not allowed.

    Attributes:
        element: The entry of a list or table that is not allowed; ``None`` if the value itself is not allowed.
    """

    def __init__(self, element: str | None = None) -> None:
        super().__init__(element)
        self.element = element


class MemoryLimit(Value):
    """A cap on the memory of one GPU: either ``bytes``, or ``percent`` of the GPU's memory (above 0, up to 100)."""

    bytes: int | None = None
    percent: float | None = None

    def of(self, total_bytes: int) -> int:
        if self.bytes is not None:
            return min(self.bytes, total_bytes)
        return int(total_bytes * (self.percent or 0) / 100)

    def __str__(self) -> str:
        return size_text(self.bytes) if self.bytes is not None else f"{self.percent:g}%"


def of_own_groups(numbers: Mapping[str, int]) -> int:
    """Return this process's cap on the number of GPUs: the largest cap of its Unix groups; 0 (no cap) if one is 0.

    If none of its groups has a cap, return the cap of ``default``; 0 if ``default`` has none.

    Args:
        numbers: Caps on the number of GPUs, keyed by a group's name or number, or by ``default``.
    """
    own = {os.getegid(), *os.getgroups()} if hasattr(os, "getgroups") else set()
    found = [number for name, number in numbers.items() if name != DEFAULT_GROUP and group_number(name) in own]
    found = found or [numbers.get(DEFAULT_GROUP, 0)]
    return 0 if 0 in found else max(found)


@lru_cache(maxsize=64)
def group_number(name: str) -> int | None:
    """Return the id of a Unix group, given its name or id; ``None`` if this host has no group of that name."""
    try:
        import grp  # Windows has no such module

        return int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
    except (ImportError, KeyError, ValueError) as error:
        raise_if_from_script(error)
        return None


def quoted(text: str, longest: int = 60) -> str:
    """Return ``text`` as a TOML string that is safe to print. A text over ``longest`` characters is cut."""
    if len(text) > longest:
        text = text[:longest] + "..."
    return '"' + printable(text.replace("\\", "\\\\").replace('"', '\\"'), 4 * longest) + '"'


def brief(value: object) -> str:
    """Return a short text for any TOML value. For a list, table, date or time, return only the type."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "a number beyond 64 bits"
    if isinstance(value, (int, float)):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return "a list"
    return "a table" if isinstance(value, dict) else "a date or time"


def toml_text(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(toml_text(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{bare(name)} = {toml_text(item)}" for name, item in value.items()) + "}"
    return quoted(value, 256) if isinstance(value, str) else brief(value)


def bare(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]{1,64}", name) else quoted(name)


def size_text(size_bytes: int) -> str:
    """Return the shortest exact text for a size: ``8GiB``, ``8GB``, ``1536MiB``."""
    for power in (4, 3, 2, 1):
        for unit, base in (("iB", 1024), ("B", 1000)):
            if size_bytes and size_bytes % base**power == 0:
                return f"{size_bytes // base**power}{' KMGT'[power]}{unit}"
    return f"{size_bytes}B"


def duration_text(duration_s: float) -> str:
    """Return a duration as policy files hold it: ``1h30m``, ``0.5s``, ``0``."""
    return exact_span(duration_s).replace("min", "m").replace(" ", "") if duration_s else "0"


class Kind(Value):
    """One kind of policy value.

    Attributes:
        allowed: A description of the allowed values, which messages and the reference show after "allowed:".
        read: Converts what a file, variable or option holds to the value; raises ``Refused`` if it is not allowed.
        schema: The JSON schema of the TOML value. It allows any string, even one that ``read`` refuses.
        plain: Converts the value to types that TOML and JSON have; ``read`` accepts the result.
        words: The allowed words, by which autogpu completes and corrects what users type.
        hints: Patterns of usual mistakes, each with the advice to users who make the mistake.
    """

    allowed: str
    read: Callable[[Any], object]
    schema: Mapping[str, object]
    plain: Callable[[Any], object] = lambda value: value
    words: tuple[str, ...] = ()
    hints: tuple[tuple[str, str], ...] = ()

    def nearest(self, text: str) -> str:
        """Return the allowed word that is most similar to ``text``, as TOML writes it; ``""`` if none is similar."""
        word = most_similar(text, self.words)
        return toml_text(self.plain(self.read(word))) if word else ""


def most_similar(name: str, known: Collection[str]) -> str:
    """Return the name in ``known`` that is most similar to ``name``; ``""`` if none is similar.

    Only the first 64 characters of ``name`` count.
    """
    import difflib

    return "".join(difflib.get_close_matches(name[:LONGEST_NAME], known, n=1))


def choice(*words: str) -> Kind:
    allowed = ", ".join(f'"{word}"' for word in words[:-1]) + f' or "{words[-1]}"'
    return Kind(allowed, lambda value: _word(value, words), {"enum": list(words)}, words=words)


def number(allowed: str, smallest: int, largest: int, words: tuple[str, ...] = ()) -> Kind:
    def read(value: Any) -> int | str:
        if type(value) is not int and not re.fullmatch(_INTEGER, _text(value)):
            return _word(value, words)
        found = int(value)
        if not smallest <= found <= largest:
            raise Refused
        return found

    schema = {"type": "integer", "minimum": smallest, "maximum": largest}
    return Kind(allowed, read, {"anyOf": [schema, {"enum": list(words)}]} if words else schema, words=words)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise Refused
    return value.strip()


def _word(value: object, words: Collection[str]) -> str:
    word = _text(value).lower()
    if word not in words:
        raise Refused
    return word


def _entries(value: object) -> list[object]:
    if isinstance(value, list):
        return value
    text = _text(value)
    return [] if text.lower() == NONE else [item.strip() for item in text.split(",") if item.strip()]


def _flag(value: object) -> bool:
    return value if isinstance(value, bool) else _word(value, _ON + _OFF) in _ON


def _size(value: object) -> int | None:
    # Users who write 6 mean GiB, and users who write 8192 mean MiB. So autogpu requires a unit.
    text = _text(value).lower()
    if text in ("", NONE):
        return None
    found = re.fullmatch(_SIZE, text)
    size_bytes = round(float(found.group(1)) * _UNITS.get(found.group(2), 0)) if found else 0
    if not SMALLEST_BYTES <= size_bytes <= LARGEST_BYTES:
        raise Refused
    return size_bytes


def _plain_size(value: object) -> str:
    return "" if value is None else size_text(value) if isinstance(value, int) else str(value)


def _limit(value: object) -> MemoryLimit | None:
    found = re.fullmatch(_PERCENT, _text(value))
    if found is None:
        size_bytes = _size(value)
        return None if size_bytes is None else MemoryLimit(bytes=size_bytes)
    if not 0 < float(found.group(1)) <= 100:
        raise Refused
    return MemoryLimit(percent=float(found.group(1)))


def _duration(value: Any) -> float:
    if type(value) in (int, float):
        seconds = value
    else:
        text = _text(value)
        found = re.fullmatch(_DURATION, f"{text}s" if re.fullmatch(_NUMBER, text) else text)
        if found is None:
            raise Refused
        seconds = sum(float(part or 0) * unit_s for part, unit_s in zip(found.groups(), (86400, 3600, 60, 1)))
    if not 0 <= seconds <= LONGEST_S:  # also refuses nan, which TOML allows
        raise Refused
    return round(float(seconds), 3)


def _device(item: object) -> str:
    if type(item) is int and 0 <= item <= 999:
        return str(item)
    text = item.strip() if isinstance(item, str) else ""
    numbers = re.fullmatch("([0-9]{1,3})-([0-9]{1,3})", text)
    is_backwards = numbers is not None and int(numbers[1]) > int(numbers[2])
    if not text.isprintable() or not re.fullmatch(_DEVICE, text) or is_backwards:
        raise Refused(brief(item))
    return text


def _key_name(item: object) -> str:
    if not isinstance(item, str):
        raise Refused(brief(item))
    return item


def _by_group(value: object) -> object:
    """Return one cap for all users, or a table of caps keyed by ``default`` or by a Unix group's name or number."""
    if not isinstance(value, dict):
        return _CAP.read(value)
    caps = {}
    for name, entry in value.items():
        try:
            caps[name] = _CAP.read(entry)
        except Refused:
            raise Refused(f"{bare(name)} = {brief(entry)}") from None
    return caps


_CAP = number("", 0, 1024)
_NO_UNIT = "[0-9.]+", 'add the unit, as in "6GiB"'

FLAG = Kind("true or false", _flag, {"type": "boolean"}, words=("true", "false"))
NEED = Kind(
    'a size with its unit such as "6GiB", or "" for none',
    _size,
    {"type": "string"},
    _plain_size,
    hints=(_NO_UNIT, (".*%", "did you mean limit?")),
)
LIMIT = Kind(
    'a size with its unit such as "8GiB", a percentage such as "50%", or "" for none',
    _limit,
    {"type": "string"},
    _plain_size,
    hints=(_NO_UNIT,),
)
DURATION = Kind(
    'a duration such as "30m", "90s" or "1h30m", up to 365d; a number alone is seconds',
    _duration,
    {"type": ["string", "number"]},
    duration_text,
)
DEVICES = Kind(
    'a list of indexes ("0"), ranges ("0-3"), UUID prefixes ("GPU-5d0f") and names ("*A100*")',
    lambda value: tuple(_device(item) for item in _entries(value)),
    {"type": "array", "items": {"type": ["string", "integer"]}},
    list,
    hints=(
        ("[0-9:-]+( +[0-9:-]+)+", "write commas between them"),
        ("[0-9]+-[0-9]+", "the smaller number comes first"),
        ("[0-9]{4,}", 'write a name between stars, such as "*3090*"'),
    ),
)
KEY_NAMES = Kind(
    'a list of keys such as ["select.exclude"]',
    lambda value: frozenset(_key_name(item) for item in _entries(value)),
    {"type": "array", "items": {"type": "string"}},
    sorted,
)
CAPS = Kind(
    "a number of GPUs (0 for no cap), or a table of such numbers keyed by Unix group, such as {default = 2, staff = 4}",
    _by_group,
    {"anyOf": [_CAP.schema, {"type": "object", "additionalProperties": _CAP.schema}]},
)
