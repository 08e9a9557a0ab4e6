"""What a policy value may be: one kind per sort of value, each reads TOML, reads text, and writes itself back.

A kind is independent of keys, files and layers. ``from_toml`` takes what a TOML file holds, ``from_text`` what a
variable or a flag holds, without space around it; both give the value that :class:`autogpu.policy.Policy` carries, or
raise ``Refused``.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod

from autogpu.frozen import frozen
from autogpu.reporting.text import printable

SMALLEST_BYTES = 1024**2
LARGEST_BYTES = 1024**5
LONGEST_S = 365 * 86400.0

_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
_DECIMAL = {"K": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4}
# Digits are bounded so that int() and float() stay cheap and never meet Python's limit on long numbers.
_SIZE = r"[0-9]{1,16}(?:\.[0-9]{1,6})? ?(?:[KkMmGgTt][Ii]?[Bb]?|[Bb])"
_PERCENT = r"[0-9]{1,3}(?:\.[0-9]{1,3})? ?%"
_NUMBER = r"[0-9]{1,7}(?:\.[0-9]{1,3})?"
# As people write times, and as autogpu itself does: 30m, 30 min, 2 hours, 1h 30m.
_DURATION = (
    rf"(?=[0-9])(?:({_NUMBER}) ?d(?:ays?)?)? ?(?:({_NUMBER}) ?h(?:ours?|rs?)?)? ?"
    rf"(?:({_NUMBER}) ?m(?:in(?:ute)?s?)?)? ?(?:({_NUMBER}) ?s(?:ec(?:ond)?s?)?)?"
)
_INTEGER = r"[+-]?[0-9]{1,9}"

# What a MIG instance is made of, which begins with a number: "1g.5gb", "1c.3g.20gb", "1g.*".
_INSTANCE_NAME = re.compile(r"[1-9][0-9]?[cg](?:[.*+][0-9A-Za-z.*+]*)?")

_ON = ("1", "true", "yes", "on")
_OFF = ("0", "false", "no", "off")
NONE = "none"


class Refused(Exception):
    """A value is not allowed: ``why`` helps further, ``element`` names the culprit in a list."""

    def __init__(self, why: str = "", *, element: str | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.element = element


@frozen
class MemoryLimit:
    """A cap on the memory of one GPU: so many bytes, or a percentage of what the GPU has.

    Attributes:
        bytes: The cap in bytes; ``None`` where it is a percentage.
        percent: Above 0, up to 100; ``None`` where the cap is in bytes.
    """

    bytes: int | None = None
    percent: float | None = None

    def of(self, total_bytes: int) -> int:
        """The cap in bytes on a GPU of ``total_bytes``, never more than the GPU has."""
        if self.bytes is not None:
            return min(self.bytes, total_bytes)
        return int(total_bytes * (self.percent or 0) / 100)

    def __str__(self) -> str:
        return size_text(self.bytes) if self.bytes is not None else f"{self.percent:g}%"


def quoted(text: str, longest: int = 60) -> str:
    """``text`` as a TOML string, safe for a terminal."""
    if len(text) > longest:
        text = text[:longest] + "..."
    return '"' + printable(text.replace("\\", "\\\\").replace('"', '\\"'), 4 * longest) + '"'


def brief(value: object) -> str:
    """Any TOML value in a few words; what could be long or nested is only named."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if -(2**63) <= value < 2**63 else "a number beyond 64 bits"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, (list, tuple)):
        return "a list"
    return "a table" if isinstance(value, dict) else "a date or time"


def toml_text(value: object) -> str:
    """A plain value (as :meth:`Kind.plain` gives it) as it is written in a TOML file."""
    if isinstance(value, list):
        return "[" + ", ".join(toml_text(item) for item in value) + "]"
    return quoted(value, 256) if isinstance(value, str) else brief(value)


def size_text(size_bytes: int) -> str:
    """The shortest exact way to write a size: ``8GiB``, ``8GB``, ``1536MiB``."""
    for prefix in "TGMK":
        for unit, factor in ((f"{prefix}iB", _UNITS[prefix]), (f"{prefix}B", _DECIMAL[prefix])):
            if size_bytes and size_bytes % factor == 0:
                return f"{size_bytes // factor}{unit}"
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
    """One sort of value.

    Attributes:
        allowed: Finishes the sentence "allowed: ..." in messages and in the reference.
        words: Those among which the nearest to a misspelt value is looked for.
    """

    allowed = ""
    words: tuple[str, ...] = ()

    def from_toml(self, value: object) -> object:
        """The value of a key in a TOML file."""
        if not isinstance(value, str):
            raise Refused
        return self.from_text(value)

    @abstractmethod
    def from_text(self, text: str) -> object:
        """The value of a variable or a flag."""

    def plain(self, value: object) -> object:
        """The value as TOML and JSON hold it; ``from_toml`` reads it back."""
        return value

    @abstractmethod
    def schema(self) -> dict[str, object]:
        """The JSON schema of what ``from_toml`` takes. The ranges of sizes and durations are not in it."""


class Flag(Kind):
    """Yes or no."""

    allowed = "true or false"
    words = ("true", "false", "yes")

    def from_toml(self, value: object) -> object:
        if isinstance(value, str) and value.lower() in _ON + _OFF:
            raise Refused(f"say {brief(self.from_text(value))}, without quotes")
        if not isinstance(value, bool):
            raise Refused
        return value

    def from_text(self, text: str) -> object:
        word = text.lower()
        if word not in _ON + _OFF:
            raise Refused
        return word in _ON

    def schema(self) -> dict[str, object]:
        return {"type": "boolean"}


class Number(Kind):
    """A whole number in a range, or one of a few ``words``."""

    def __init__(self, allowed: str, smallest: int, largest: int, words: tuple[str, ...] = ()) -> None:
        self.allowed = allowed
        self._smallest = smallest
        self._largest = largest
        self.words = words

    def from_toml(self, value: object) -> object:
        if isinstance(value, str) and value.lower() in self.words:
            return value.lower()
        if isinstance(value, str) and re.fullmatch(_INTEGER, value):
            raise Refused("numbers stand without quotes")
        if isinstance(value, bool) or not isinstance(value, int):
            raise Refused
        if not self._smallest <= value <= self._largest:
            raise Refused
        return value

    def from_text(self, text: str) -> object:
        return self.from_toml(int(text) if re.fullmatch(_INTEGER, text) else text)

    def schema(self) -> dict[str, object]:
        number = {"type": "integer", "minimum": self._smallest, "maximum": self._largest}
        return {"anyOf": [number, {"enum": list(self.words)}]} if self.words else number


class Choice(Kind):
    """One of a few words."""

    def __init__(self, *words: str) -> None:
        self.words = words
        self.allowed = ", ".join(f'"{word}"' for word in words[:-1]) + f' or "{words[-1]}"'

    def from_toml(self, value: object) -> object:
        if not isinstance(value, str) or value.lower() not in self.words:
            raise Refused
        return value.lower()

    def from_text(self, text: str) -> object:
        return self.from_toml(text)

    def schema(self) -> dict[str, object]:
        return {"enum": list(self.words)}


class Size(Kind):
    """An amount of memory, or nothing said."""

    allowed = 'a size with its unit such as "6GiB" or "512MiB", or "" for none'

    def from_toml(self, value: object) -> object:
        if isinstance(value, str):
            return self.from_text(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise Refused
        return _bytes(value)

    def from_text(self, text: str) -> object:
        return _bytes_of_text(text)

    def plain(self, value: object) -> object:
        return size_text(value) if isinstance(value, int) else ""

    def schema(self) -> dict[str, object]:
        text = {"type": "string", "pattern": f"^(?:|[Nn][Oo][Nn][Ee]|[0-9]{{7,18}}|{_SIZE})$"}
        return {"anyOf": [text, {"type": "integer", "minimum": SMALLEST_BYTES, "maximum": LARGEST_BYTES}]}


class Limit(Size):
    """A :class:`MemoryLimit`, or nothing said."""

    allowed = 'a size with its unit such as "8GiB", a percentage such as "50%", or "" for none'

    def from_toml(self, value: object) -> object:
        if isinstance(value, float) and 0 < value <= 1:
            raise Refused(f'say "{value * 100:g}%"')
        if isinstance(value, int) and not isinstance(value, bool):
            return MemoryLimit(bytes=_bytes(value))
        return super().from_toml(value)

    def from_text(self, text: str) -> object:
        text = text.strip()
        if not re.fullmatch(_PERCENT, text):
            size_bytes = _bytes_of_text(text)
            return None if size_bytes is None else MemoryLimit(bytes=size_bytes)
        percent = float(text.rstrip("% "))
        if not 0 < percent <= 100:
            raise Refused("a percentage is above 0 and up to 100")
        return MemoryLimit(percent=percent)

    def plain(self, value: object) -> object:
        return str(value) if isinstance(value, MemoryLimit) else ""

    def schema(self) -> dict[str, object]:
        return {"anyOf": [{"type": "string", "pattern": f"^{_PERCENT}$"}, super().schema()]}


class Duration(Kind):
    """A time in seconds."""

    allowed = 'a duration such as "30m", "90s" or "1h30m"; a number alone is seconds'

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

    def plain(self, value: object) -> object:
        return duration_text(value) if isinstance(value, (int, float)) else value

    def schema(self) -> dict[str, object]:
        number = {"type": "number", "minimum": 0, "maximum": LONGEST_S}
        return {"anyOf": [{"type": "string", "pattern": f"^(?:{_NUMBER}|{_DURATION})$"}, number]}


class Devices(Kind):
    """Which GPUs: a tuple of indexes, ranges, UUID prefixes and name patterns, as text."""

    allowed = 'a list of indexes ("0"), ranges ("0-3"), UUID prefixes ("GPU-5d0f") and names ("*A100*")'

    def from_toml(self, value: object) -> object:
        if not isinstance(value, list):
            raise Refused("a list stands in [ ]")
        return tuple(_device_pattern(item) for item in value)

    def from_text(self, text: str) -> object:
        if text.strip().lower() == NONE:
            return ()
        return self.from_toml([item.strip() for item in text.split(",") if item.strip()])

    def plain(self, value: object) -> object:
        return list(value) if isinstance(value, tuple) else []

    def schema(self) -> dict[str, object]:
        number, name = "[0-9]{1,3}", r"[^0-9,\s\x00-\x1f+-][^,\x00-\x1f]*"
        instance = f"{number}:[0-9]{{1,2}}|{_INSTANCE_NAME.pattern}"
        text = {"type": "string", "pattern": f"^(?:{number}(?: ?- ?{number})?|{instance}|{name})$", "maxLength": 128}
        index = {"type": "integer", "minimum": 0, "maximum": 999}
        return {"type": "array", "items": {"anyOf": [text, index]}}


class KeyNames(Kind):
    """Names of keys. Whether such keys exist is not asked here."""

    allowed = 'a list of keys such as ["select.exclude"]'

    def from_toml(self, value: object) -> object:
        if not isinstance(value, list):
            raise Refused
        for item in value:
            if not isinstance(item, str):
                raise Refused(element=brief(item))
        return frozenset(value)

    def from_text(self, text: str) -> object:
        return frozenset(item.strip() for item in text.split(",") if item.strip())

    def plain(self, value: object) -> object:
        return sorted(value) if isinstance(value, frozenset) else []

    def schema(self) -> dict[str, object]:
        return {"type": "array", "items": {"type": "string"}}


def _bytes(number: int) -> int:
    if number < SMALLEST_BYTES:
        # People who write 6 mean GiB, those who write 8192 mean MiB: guessing would be wrong for half of
        # them.
        raise Refused(f'{brief(number)} would be bytes: give the unit, as in "6GiB"')
    return _in_range(number)


def _bytes_of_text(text: str) -> int | None:
    text = text.strip()
    if text.lower() in ("", NONE):
        return None
    if re.fullmatch("[0-9]{1,18}", text):
        return _bytes(int(text))
    found = re.fullmatch(r"([0-9.]+) ?([A-Za-z]+)", text) if re.fullmatch(_SIZE, text) else None
    if found is None:
        raise Refused
    number, unit = found.groups()
    prefix = unit[0].upper() if unit[0] not in "Bb" else ""
    # "8G" and "8Gi" are 2**30, as Slurm, Docker and Kubernetes read one or the other; only "GB" is decimal.
    is_decimal = len(unit) == 2 and unit[1] in "Bb"
    return _in_range(round(float(number) * (_DECIMAL if is_decimal else _UNITS)[prefix]))


def _in_range(size_bytes: int) -> int:
    if not SMALLEST_BYTES <= size_bytes <= LARGEST_BYTES:
        raise Refused("sizes go from 1MiB to 1024TiB")
    return size_bytes


def _device_pattern(item: object) -> str:
    if isinstance(item, int) and not isinstance(item, bool) and 0 <= item <= 999:
        return str(item)
    if not isinstance(item, str):
        raise Refused(element=brief(item))
    text = item.strip()
    if not text or len(text) > 128 or not text.isprintable():
        raise Refused(element=brief(item))
    if "," in text:
        raise Refused("each GPU is an entry of its own", element=brief(item))
    if re.fullmatch("[0-9]{1,3}:[0-9]{1,2}", text):
        return ":".join(str(int(number)) for number in text.split(":"))  # an instance of a card
    if (text[0].isdigit() or text[0] in "+-") and not _INSTANCE_NAME.fullmatch(text):
        found = re.fullmatch("([0-9]{1,3})(?: ?- ?([0-9]{1,3}))?", text)
        if found is None:
            # "3090" is far more often a card's name than the index of a GPU.
            hint = f'for a name, write "*{text}*"' if re.fullmatch("[0-9]{4}", text) else ""
            raise Refused(hint, element=brief(item))
        first, last = found.groups()
        if last is None:
            return str(int(first))
        if int(last) < int(first):
            raise Refused("a range runs upwards", element=brief(item))
        return f"{int(first)}-{int(last)}"
    if text[:4].upper() in ("GPU-", "MIG-") and not re.fullmatch("[0-9A-Fa-fGPU/-]*", text[4:]):
        raise Refused("a UUID has only hexadecimal digits and dashes", element=brief(item))
    return text
