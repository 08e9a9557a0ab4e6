"""The kinds of policy values: each reads TOML, reads text, and writes its values back.

A kind is independent of keys, files and layers. ``from_toml`` takes what a TOML file holds, ``from_text`` what a
variable or a flag holds, without space around it; both give the value that :class:`autogpu.policy.Policy` carries, or
raise ``Refused``.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from functools import lru_cache

from autogpu.frozen import frozen
from autogpu.reporting.text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping

SMALLEST_BYTES = 1024**2
LARGEST_BYTES = 1024**5
LONGEST_S = 365 * 86400.0

# Digits are bounded so that int() and float() stay cheap and never meet Python's limit on long numbers.
_SIZE = r"([0-9]{1,16}(?:\.[0-9]{1,6})?) ?(?:([KkMmGgTt])([Ii]?)([Bb]?)|[Bb])"
_PERCENT = r"([0-9]{1,3}(?:\.[0-9]{1,3})?) ?%"
_NUMBER = r"[0-9]{1,7}(?:\.[0-9]{1,3})?"
# As people write times, and as autogpu itself does: 30m, 30 min, 2 hours, 1h 30m.
_DURATION = (
    rf"(?=[0-9])(?:({_NUMBER}) ?d(?:ays?)?)? ?(?:({_NUMBER}) ?h(?:ours?|rs?)?)? ?"
    rf"(?:({_NUMBER}) ?m(?:in(?:ute)?s?)?)? ?(?:({_NUMBER}) ?s(?:ec(?:ond)?s?)?)?"
)
_INTEGER = r"[+-]?[0-9]{1,9}"

# An index, an instance of a card, a range.
_NUMBERS = "([0-9]{1,3})(?:(:| ?- ?)([0-9]{1,3}))?"

# MIG profiles are names that begin with a number: "1g.5gb", "1c.3g.20gb", "1g.*".
_INSTANCE_NAME = r"[1-9][0-9]?[cg](?:[.*+][0-9A-Za-z.*+]*)?"

# Other texts that can't be the name of a device, and why.
_NO_DEVICES = (
    (".*,", "write each GPU as its own entry"),
    ("[0-9:-]+( +[0-9:-]+)+$", "write commas between them"),
    # "3090" is far more often a card's name than the index of a GPU.
    ("[0-9]{4}$", 'for a name, write "*{}*"'),
    ("[0-9+-]", ""),
    ("(?i:GPU-|MIG-)(?![0-9A-Fa-fGPU/-]*$)", "a UUID has only hexadecimal digits and dashes"),
)

_ON = ("1", "true", "yes", "on")
_OFF = ("0", "false", "no", "off")
NONE = "none"
LEARNED = "learned"
DEFAULT_GROUP = "default"


class Refused(Exception):
    """A value is not allowed: ``why`` helps further, ``element`` names the culprit in a list, ``entry`` in a table."""

    def __init__(self, why: str = "", *, element: str | None = None, entry: str | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.element = element
        self.entry = entry


@frozen
class MemoryLimit:
    """A cap on the memory of one GPU: either ``bytes``, or ``percent`` of what the GPU has (above 0, up to 100)."""

    bytes: int | None = None
    percent: float | None = None

    def of(self, total_bytes: int) -> int:
        """The cap in bytes on a GPU of ``total_bytes``, never more than the GPU has."""
        if self.bytes is not None:
            return min(self.bytes, total_bytes)
        return int(total_bytes * (self.percent or 0) / 100)

    def __str__(self) -> str:
        return size_text(self.bytes) if self.bytes is not None else f"{self.percent:g}%"


@frozen
class GroupLimits:
    """A number for each of some Unix groups, by name or number, and by ``default`` for who is in none of them."""

    numbers: tuple[tuple[str, int], ...]

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of the groups."""
        return tuple(name for name, _ in self.numbers if name != DEFAULT_GROUP)

    def of_process(self) -> int:
        """The largest number of the groups that this process is in; 0, which is no limit, is larger than all."""
        own = {os.getegid(), *os.getgroups()} if hasattr(os, "getgroups") else set()
        found = [number for name, number in self.numbers if name != DEFAULT_GROUP and group_number(name) in own]
        found = found or [dict(self.numbers).get(DEFAULT_GROUP, 0)]
        return 0 if 0 in found else max(found)


@lru_cache(maxsize=64)
def group_number(name: str) -> int | None:
    """Of the group of that name, or that number; ``None`` where this host has none."""
    try:
        import grp  # not on Windows

        return int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
    except (ImportError, KeyError, ValueError):
        return None


def quoted(text: str, longest: int = 60) -> str:
    """``text`` as a TOML string, safe for a terminal."""
    if len(text) > longest:
        text = text[:longest] + "..."
    return '"' + printable(text.replace("\\", "\\\\").replace('"', '\\"'), 4 * longest) + '"'


def brief(value: object) -> str:
    """Any TOML value in a few words; what could be long or nested is only named."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value) if -(2**63) <= value < 2**63 else "a number beyond 64 bits"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return "a list"
    return "a table" if isinstance(value, dict) else "a date or time"


def toml_text(value: object) -> str:
    """A plain value (as :meth:`Kind.plain` gives it) as it is written in a TOML file."""
    if isinstance(value, list):
        return "[" + ", ".join(toml_text(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_bare(name)} = {toml_text(item)}" for name, item in value.items()) + "}"
    return quoted(value, 256) if isinstance(value, str) else brief(value)


def _bare(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]{1,64}", name) else quoted(name)


def size_text(size_bytes: int) -> str:
    """The shortest exact way to write a size: ``8GiB``, ``8GB``, ``1536MiB``."""
    for power in (4, 3, 2, 1):
        for unit, base in (("iB", 1024), ("B", 1000)):
            if size_bytes and size_bytes % base**power == 0:
                return f"{size_bytes // base**power}{' KMGT'[power]}{unit}"
    return f"{size_bytes}B"


def duration_text(duration_s: float) -> str:
    """A duration as a policy writes it: ``1h30m``, ``0.5s``, ``0``."""
    whole, parts = int(duration_s), ""
    for unit, factor in (("d", 86400), ("h", 3600), ("m", 60)):
        if whole >= factor:
            parts += f"{whole // factor}{unit}"
            whole %= factor
    rest = whole + (duration_s - int(duration_s))
    return parts + (f"{rest:g}s" if rest else "") or "0"


class Kind(ABC):
    """One kind of value. The JSON schema is of what ``from_toml`` takes, without the ranges of sizes and durations."""

    allowed = ""  # finishes the sentence "allowed: ..." in messages and in the reference
    words: tuple[str, ...] = ()  # among which the nearest to a misspelt value is looked for
    schema: Mapping[str, object] = {}

    def from_toml(self, value: object) -> object:
        """The value of a key in a TOML file."""
        if not isinstance(value, str):
            raise Refused
        return self.from_text(value)

    @abstractmethod
    def from_text(self, text: str) -> object:
        """The value of a variable or a flag."""

    def plain(self, value: Any) -> object:
        """The value as TOML and JSON hold it; ``from_toml`` reads it back."""
        return value


class Flag(Kind):
    """Yes or no."""

    allowed = "true or false"
    words = ("true", "false", "yes")
    schema = {"type": "boolean"}

    def from_toml(self, value: object) -> object:
        if isinstance(value, bool):
            return value
        raise Refused(f"write {brief(super().from_toml(value))}, without quotes")

    def from_text(self, text: str) -> object:
        if text.lower() not in _ON + _OFF:
            raise Refused
        return text.lower() in _ON


class Choice(Kind):
    """One of a few words."""

    def __init__(self, *words: str) -> None:
        self.words = words
        self.allowed = ", ".join(f'"{word}"' for word in words[:-1]) + f' or "{words[-1]}"'
        self.schema = {"enum": list(words)}

    def from_text(self, text: str) -> object:
        if text.lower() not in self.words:
            raise Refused
        return text.lower()


class Number(Kind):
    """A whole number in a range, or one of a few ``words``."""

    def __init__(self, allowed: str, smallest: int, largest: int, words: tuple[str, ...] = ()) -> None:
        self.allowed = allowed
        self.words = words
        self._range = smallest, largest
        number = {"type": "integer", "minimum": smallest, "maximum": largest}
        self.schema = {"anyOf": [number, {"enum": list(words)}]} if words else number

    def from_toml(self, value: object) -> object:
        if type(value) is int and self._range[0] <= value <= self._range[1]:
            return value
        if isinstance(value, str) and re.fullmatch(_INTEGER, value):
            raise Refused("write the number without quotes")
        return super().from_toml(value)

    def from_text(self, text: str) -> object:
        if re.fullmatch(_INTEGER, text) and self._range[0] <= int(text) <= self._range[1]:
            return int(text)
        if text.lower() not in self.words:
            raise Refused
        return text.lower()


class NumberByGroup(Number):
    """A number, or a table of :class:`GroupLimits`."""

    def __init__(self, allowed: str, smallest: int, largest: int) -> None:
        super().__init__(allowed, smallest, largest)
        self.schema = {"anyOf": [self.schema, {"type": "object", "additionalProperties": self.schema}]}

    def from_toml(self, value: object) -> object:
        if not isinstance(value, dict):
            return super().from_toml(value)
        for name, number in value.items():
            try:
                super().from_toml(number)
            except Refused as refused:
                raise Refused(refused.why, element=f"{_bare(name)} = {brief(number)}", entry=name) from None
        return GroupLimits(tuple(value.items()))

    def plain(self, value: Any) -> object:
        return dict(value.numbers) if isinstance(value, GroupLimits) else value


class Size(Kind):
    """An amount of memory, or nothing."""

    allowed = 'a size with its unit such as "6GiB" or "512MiB", or "" for none'
    schema = {
        "anyOf": [
            {"type": "string", "pattern": f"^(?:|[Nn][Oo][Nn][Ee]|[0-9]{{7,18}}|{_SIZE})$"},
            {"type": "integer", "minimum": SMALLEST_BYTES, "maximum": LARGEST_BYTES},
        ]
    }

    def from_toml(self, value: object) -> object:
        return _bytes(value) if type(value) is int else super().from_toml(value)

    def from_text(self, text: str) -> object:
        return _bytes_of_text(text)

    def plain(self, value: Any) -> object:
        return "" if value is None else size_text(value)


class Need(Size):
    """An amount of memory, nothing, or what the last runs took."""

    allowed = 'a size with its unit such as "6GiB", "learned", or "" for none'
    words = (LEARNED,)
    schema = {"anyOf": [{"enum": [LEARNED]}, Size.schema]}

    def from_text(self, text: str) -> object:
        return LEARNED if text.strip().lower() == LEARNED else super().from_text(text)

    def plain(self, value: Any) -> object:
        return value if value == LEARNED else super().plain(value)


class Limit(Kind):
    """A :class:`MemoryLimit`, or nothing."""

    allowed = 'a size with its unit such as "8GiB", a percentage such as "50%", or "" for none'
    schema = {"anyOf": [{"type": "string", "pattern": f"^{_PERCENT}$"}, Size.schema]}

    def from_toml(self, value: object) -> object:
        if isinstance(value, float) and 0 < value <= 1:
            raise Refused(f'write "{value * 100:g}%"')
        return MemoryLimit(bytes=_bytes(value)) if type(value) is int else super().from_toml(value)

    def from_text(self, text: str) -> object:
        found = re.fullmatch(_PERCENT, text.strip())
        if found is None:
            size_bytes = _bytes_of_text(text)
            return None if size_bytes is None else MemoryLimit(bytes=size_bytes)
        if not 0 < float(found.group(1)) <= 100:
            raise Refused("a percentage is above 0 and up to 100")
        return MemoryLimit(percent=float(found.group(1)))

    def plain(self, value: Any) -> object:
        return "" if value is None else str(value)


class Duration(Kind):
    """A time in seconds."""

    allowed = 'a duration such as "30m", "90s" or "1h30m"; a number alone is seconds'
    schema = {
        "anyOf": [
            {"type": "string", "pattern": f"^(?:{_NUMBER}|{_DURATION})$"},
            {"type": "number", "minimum": 0, "maximum": LONGEST_S},
        ]
    }

    def from_toml(self, value: object) -> object:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return self._in_range(value)
        return super().from_toml(value)

    def from_text(self, text: str) -> object:
        text = text.strip()
        if re.fullmatch(_NUMBER, text):
            return self._in_range(float(text))
        found = re.fullmatch(_DURATION, text)
        if found is None:
            raise Refused
        days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
        return self._in_range(days * 86400 + hours * 3600 + minutes * 60 + seconds)

    def _in_range(self, seconds: float) -> float:
        if seconds > LONGEST_S:
            raise Refused("at most 365d")
        if not seconds >= 0:  # nor is what TOML calls nan
            raise Refused
        return float(seconds)

    def plain(self, value: Any) -> object:
        return duration_text(value)


class Devices(Kind):
    """Which GPUs: a tuple of indexes, ranges, UUID prefixes and name patterns, as text."""

    allowed = 'a list of indexes ("0"), ranges ("0-3"), UUID prefixes ("GPU-5d0f") and names ("*A100*")'
    schema = {
        "type": "array",
        "items": {
            "anyOf": [
                {
                    "type": "string",
                    "pattern": rf"^(?:{_NUMBERS}|{_INSTANCE_NAME}|[^0-9,\s\x00-\x1f+-][^,\x00-\x1f]*)$",
                    "maxLength": 128,
                },
                {"type": "integer", "minimum": 0, "maximum": 999},
            ]
        },
    }

    def from_toml(self, value: object) -> object:
        if not isinstance(value, list):
            raise Refused("write a list, in [ ]")
        return tuple(_device(item) for item in value)

    def from_text(self, text: str) -> object:
        if text.strip().lower() == NONE:
            return ()
        return self.from_toml([item.strip() for item in text.split(",") if item.strip()])

    def plain(self, value: Any) -> object:
        return list(value)


class KeyNames(Kind):
    """Names of keys. Whether such keys exist is not asked here."""

    allowed = 'a list of keys such as ["select.exclude"]'
    schema = {"type": "array", "items": {"type": "string"}}

    def from_toml(self, value: object) -> object:
        if not isinstance(value, list):
            raise Refused
        for item in value:
            if not isinstance(item, str):
                raise Refused(element=brief(item))
        return frozenset(value)

    def from_text(self, text: str) -> object:
        return frozenset(item.strip() for item in text.split(",") if item.strip())

    def plain(self, value: Any) -> object:
        return sorted(value)


def _bytes(number: int) -> int:
    if number < SMALLEST_BYTES:
        # People who write 6 mean GiB, those who write 8192 mean MiB: guessing would be wrong for half of them.
        raise Refused(f'{brief(number)} are bytes: add the unit, as in "6GiB"')
    return _in_range(number)


def _bytes_of_text(text: str) -> int | None:
    text = text.strip()
    if text.lower() in ("", NONE):
        return None
    if re.fullmatch("[0-9]{1,18}", text):
        return _bytes(int(text))
    found = re.fullmatch(_SIZE, text)
    if found is None:
        raise Refused
    number, prefix, binary, byte = found.groups()
    # "8G" and "8Gi" are 2**30, as Slurm, Docker and Kubernetes read one or the other; only "GB" is decimal.
    base = 1000 if byte and not binary else 1024
    return _in_range(round(float(number) * base ** " KMGT".index((prefix or " ").upper())))


def _in_range(size_bytes: int) -> int:
    if not SMALLEST_BYTES <= size_bytes <= LARGEST_BYTES:
        raise Refused("sizes go from 1MiB to 1024TiB")
    return size_bytes


def _device(item: object) -> str:
    if type(item) is int and 0 <= item <= 999:
        return str(item)
    text = item.strip() if isinstance(item, str) else ""
    if not text.isprintable() or not 0 < len(text) <= 128:
        raise Refused(element=brief(item))
    numbers = re.fullmatch(_NUMBERS, text)
    if numbers:
        return _in_numbers(text, *numbers.groups())
    if not re.fullmatch(_INSTANCE_NAME, text):
        for pattern, why in _NO_DEVICES:
            if re.match(pattern, text):
                raise Refused(why.format(text), element=brief(item))
    return text


def _in_numbers(text: str, first: str, separator: str | None, last: str) -> str:
    if separator is None:
        return str(int(first))
    if separator != ":" and int(last) < int(first):
        raise Refused("the smaller number comes first", element=brief(text))
    return f"{int(first)}{separator.strip()}{int(last)}"
