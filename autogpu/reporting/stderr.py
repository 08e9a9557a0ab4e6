"""Lines on the stderr of a process that is not ours."""

from __future__ import annotations

import sys

_printed: set[str] = set()


def say(message: str) -> None:
    """Print one line on stderr, once per process; nothing where there is no stderr."""
    line = "autogpu: " + message
    if line in _printed or sys.stderr is None:
        return
    _printed.add(line)
    try:
        # One write: two jobs in one terminal must not tear each other's lines.
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except Exception:  # closed, its reader has gone, or any object that a script has put there
        pass


def is_terminal() -> bool:
    """Whether a person is looking at stderr as it is written."""
    try:
        return sys.stderr.isatty()
    except Exception:  # as above
        return False
