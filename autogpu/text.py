"""Values as text for people. Pass all text of other programs and users through :func:`printable`."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Sequence

MIB = 1 << 20
GIB = 1 << 30

# The most characters of a message's line. With "autogpu: " before it, the line fits 120 columns.
LINE_WIDTH = 111
_SPANS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def printable(text: str, longest: int = 300) -> str:
    """Return ``text`` as one line that is safe to print: names come from drivers, files and other users.

    Unprintable characters, such as those of escape sequences and direction marks, become Python's escapes. A text of
    more than ``longest`` characters is cut in the middle, because names differ at their ends.
    """
    text = _cut(text, longest)
    if not text.isprintable():
        text = _cut("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text), longest)
    return text


def _cut(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    end = longest // 3
    return text[: longest - end - 3] + "..." + text[len(text) - end :]


def fitting(parts: Sequence[str]) -> str:
    """Return the first ``parts`` in one line, as many as fit. The last of these may end at a comma or semicolon."""
    line = ""
    for part in parts:
        joined = f"{line}; {part}" if line else part
        if len(joined) > LINE_WIDTH:
            return _ended_early(joined, len(line) + len("; ")) or line or _cut(part, LINE_WIDTH)
        line = joined
    return line


def _ended_early(line: str, start: int) -> str:
    """Return ``line`` up to its last separator after ``start`` with which it fits; ``""`` if there is none.

    Nothing is cut inside brackets, because the reader could not see to what their content belongs.
    """
    for end in range(LINE_WIDTH - len("; ..."), start, -1):
        if line[end : end + 2] in (", ", "; ") and line.count("(", 0, end) == line.count(")", 0, end):
            return f"{line[: end + 1]} ..."
    return ""


def with_notes(line: Sequence[str], notes: Sequence[str]) -> list[str]:
    """Return a line of these parts, and a second one if there are notes. Leave out what does not fit."""
    return [fitting(line), *filter(None, [fitting(notes)])]


def first_fitting(lines: Sequence[str]) -> str:
    """Return the first line that fits; ``""`` if none does."""
    return next((line for line in lines if len(line) <= LINE_WIDTH), "")


def size(size_bytes: int) -> str:
    """Return a size in GiB or MiB: ``23.7 GiB``, ``64 MiB``."""
    return f"{size_bytes / GIB:.1f} GiB" if size_bytes >= GIB // 10 else f"{size_bytes / MIB:.0f} MiB"


def whole_gib(size_bytes: int) -> int:
    """Return the size in GiB, rounded up."""
    return -(-size_bytes // GIB)


def span(seconds: float) -> str:
    """Return a measured time, rounded, for example ``90 s``, ``45 min``, ``1 h 40 min``, ``26 h``, ``3 d``."""
    if 3600 <= seconds < 7200:
        minutes = int(seconds - 3600) // 60
        return f"1 h {minutes} min" if minutes else "1 h"
    for unit_s, unit in _SPANS:
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def exact_span(seconds: float) -> str:
    """Return a duration that a user has set, to the millisecond, for example ``2 h 30 min``, ``1 d 2 h``, ``0.5 s``."""
    left = round(seconds, 3)
    parts = []
    for unit_s, unit in _SPANS:
        whole, left = divmod(left, unit_s)
        if whole:
            parts.append(f"{whole:.0f} {unit}")
    if left or not parts:
        parts.append(f"{left:.5g} s")
    return " ".join(parts)


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number and its noun: ``1 GPU``, ``2 GPUs``. Without ``plural``, the plural is ``noun`` with an s."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


def listed(names: Sequence[str]) -> str:
    """Return the names as a list in a sentence: ``a``, ``a and b``, ``a, b and c``."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def short_path(path: str | os.PathLike[str], homes: Sequence[str] = ()) -> str:
    """Return ``path`` with ``~`` for the home folder. ``homes`` has all names of that folder."""
    text = os.fspath(path)
    for home in homes:
        if home.strip(os.sep) and text.startswith(home.rstrip(os.sep) + os.sep):
            text = "~" + text[len(home.rstrip(os.sep)) :]
    return printable(text, 200)
