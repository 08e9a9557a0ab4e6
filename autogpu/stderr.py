"""Single lines that autogpu prints on the stderr of a user's process."""

from __future__ import annotations

import io
import sys

from autogpu.errors import ignoring, raise_if_from_script

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# How long to wait for a stderr object of the script. The thread that writes then goes on in the background.
_PATIENCE_S = 1.0

# How long to wait for the reader of a full pipe. It is 0 after the first such wait in a process.
_patience_s = 1.0

# The most characters per write. A pipe that poll reports as writable takes 4 KiB without blocking.
_MOST_AT_ONCE = 1000

_printed: set[str] = set()


def say(message: str) -> None:
    """Print one line on stderr, once per process. Do nothing without a stderr, and ignore its errors."""
    line = "autogpu: " + message
    stderr = getattr(sys, "stderr", None)
    if line in _printed or stderr is None:
        return
    _printed.add(line)
    if type(stderr) is io.TextIOWrapper or not _said_beside(stderr, line):
        _write(stderr, line)


def forget() -> None:
    """Allow every line to be printed again, because later lines are about a new situation."""
    _printed.clear()


def _write(stderr: Any, line: str) -> None:
    with ignoring(Exception):  # stderr is closed, or any object that the script has set
        # Write the line and its end at once, so that lines of two jobs in one terminal don't mix.
        for begin in range(0, len(line) + 1, _MOST_AT_ONCE):
            if not _is_read(stderr):
                return
            stderr.write((line + "\n")[begin : begin + _MOST_AT_ONCE])
            stderr.flush()


def _is_read(stderr: Any) -> bool:
    """True if a write would neither block forever nor end the script by SIGPIPE, which some scripts don't ignore."""
    global _patience_s
    try:
        import select

        poll = select.poll()
        poll.register(stderr.fileno(), select.POLLOUT)
    except Exception as error:  # stderr is not a file, or eventlet has removed poll
        raise_if_from_script(error)
        return True
    events = [event for _, event in poll.poll(_patience_s * 1000)]
    if not events:
        _patience_s = 0.0
    return events == [select.POLLOUT]


def _said_beside(stderr: Any, line: str) -> bool:
    """Write in a new thread, because the script's stderr object may use the framework, which waits for autogpu.

    Return False if no thread can start.
    """
    # Imported only here: few scripts have a stderr object of their own.
    import atexit
    import contextvars
    import threading

    def write() -> None:
        with ignoring(BaseException):  # a sys.exit() in the stderr object must not end the script
            _write(stderr, line)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(write,), name="autogpu-say", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # no more threads, or the interpreter is ending
        raise_if_from_script(error)
        return False
    thread.join(_PATIENCE_S)
    if thread.is_alive():
        # The write may wait for a lock that this thread holds now. Give it more time when the process ends.
        atexit.register(thread.join, _PATIENCE_S)
    return True


def is_terminal() -> bool:
    try:
        return bool(sys.stderr.isatty())
    except Exception as error:  # stderr may be any object
        raise_if_from_script(error)
        return False
