"""Lines on the stderr of a process that is not ours."""

from __future__ import annotations

import io
import sys

from autogpu.errors import ignoring, raise_if_from_script

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# How long a stderr of the script's own may take; it goes on beside the script after that.
_PATIENCE_S = 1.0

# And how long a reader of a full pipe; once in a process.
_patience_s = 1.0

# In characters: a pipe that can be written to takes 4 KiB without waiting.
_MOST_AT_ONCE = 1000

_printed: set[str] = set()


def say(message: str) -> None:
    """Print one line on stderr, once per process; nothing where there is no stderr. Raises nothing of a stderr's."""
    line = "autogpu: " + message
    stderr = getattr(sys, "stderr", None)
    if line in _printed or stderr is None:
        return
    _printed.add(line)
    if type(stderr) is io.TextIOWrapper or not _said_beside(stderr, line):
        _write(stderr, line)


def forget() -> None:
    """Let everything be printed again: what follows is of another moment."""
    _printed.clear()


def _write(stderr: Any, line: str) -> None:
    with ignoring(Exception):  # closed, or any object that a script has put there
        # One write: two jobs in one terminal must not tear each other's lines.
        for begin in range(0, len(line) + 1, _MOST_AT_ONCE):
            if not _is_read(stderr):
                return
            stderr.write((line + "\n")[begin : begin + _MOST_AT_ONCE])
            stderr.flush()


def _is_read(stderr: Any) -> bool:
    """A write would neither end the script by SIGPIPE, which it may not ignore, nor wait for who never reads."""
    global _patience_s
    try:
        import select

        poll = select.poll()
        poll.register(stderr.fileno(), select.POLLOUT)
    except Exception as error:  # no file; or eventlet has taken poll away
        raise_if_from_script(error)
        return True
    events = [event for _, event in poll.poll(_patience_s * 1000)]
    if not events:
        _patience_s = 0.0
    return events == [select.POLLOUT]


def _said_beside(stderr: Any, line: str) -> bool:
    """Write in a thread: what a script has put there may do anything, even use the framework that waits for us."""
    # Not at the top: few scripts put a stderr of their own there.
    import atexit
    import contextvars
    import threading

    def write() -> None:
        with ignoring(BaseException):  # sys.exit() in there ends no script
            _write(stderr, line)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(write,), name="autogpu-say", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # no more threads, or the interpreter is ending
        raise_if_from_script(error)
        return False
    thread.join(_PATIENCE_S)
    if thread.is_alive():
        # It may wait for what this process holds right now, and be done before its end.
        atexit.register(thread.join, _PATIENCE_S)
    return True


def is_terminal() -> bool:
    """A person is looking at stderr as it is written."""
    try:
        return bool(sys.stderr.isatty())
    except Exception as error:  # as above
        raise_if_from_script(error)
        return False
