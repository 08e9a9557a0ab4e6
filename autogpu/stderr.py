"""Say something to the person in front of a script, where the script's own output is not disturbed."""

from __future__ import annotations

import sys

_MAX_TEXT = 300

_said: set[str] = set()


def say(message: str) -> None:
    """Print one line on stderr, once per process; nothing where there is no stderr."""
    line = "autogpu: " + message
    if line in _said or sys.stderr is None:
        return
    _said.add(line)
    try:
        # One write: two jobs in one terminal must not tear each other's lines.
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):  # closed, or its reader has gone
        pass


def shown(text: str, most: int = _MAX_TEXT) -> str:
    """``text`` as it may stand on a terminal: names come from drivers and files and can carry escape sequences."""
    safe = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
    return safe if len(safe) <= most else safe[: most - 3] + "..."
