"""The exception that ends a process or a cell, as Python and IPython keep it, or a line in place of its traceback."""

from __future__ import annotations

import atexit
import os
import sys
from types import TracebackType
from typing import Any, Callable, Iterator

from autogpu.errors import ignoring
from autogpu.process import is_worker
from autogpu.stderr import say

# The attribute of an exception that has the line to print in place of its traceback.
_LINE = "_autogpu_line"


def show_line(error: BaseException, line: str) -> None:
    """Print ``line`` in place of the traceback if ``error`` ends the script. The exit status stays the same.

    A script that catches the error gets it unchanged. An excepthook that the script or a library has set stays.
    """
    setattr(error, _LINE, line)
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _line_or_traceback


def _line_or_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    line = getattr(error, _LINE, None)
    if line is None:
        sys.__excepthook__(kind, error, trace)
    else:
        say(line)


def at_end(look: Callable[[BaseException | None], None]) -> None:
    """Call ``look`` when this process ends, with the exception that ends it, or ``None``.

    Not in a worker of ``multiprocessing`` from Python 3.13 on: nothing tells its exit functions how it has ended.
    Source: ``sys.last_value``, which Python sets before it prints a traceback, whatever ``sys.excepthook`` is; not for
    ``SystemExit``, nor in other threads, whose errors end no process.
    """
    if not is_worker():
        atexit.register(lambda: look(getattr(sys, "last_value", None)))
    elif sys.version_info < (3, 13):
        from multiprocessing.util import Finalize

        Finalize(None, lambda: look(_of_worker()), exitpriority=0)


def _of_worker() -> BaseException | None:
    """The error on its way out of a worker of ``multiprocessing``, which prints it itself and then ends in order."""
    error = sys.exc_info()[1]
    # Some frameworks' workers write it down for their parent, and leave.
    return error.__context__ if isinstance(error, SystemExit) else error


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """``error`` and those behind it, latest first, as far as a traceback shows them."""
    for _ in range(20):  # one may be its own cause
        if error is None:
            return
        yield error
        behind = None if error.__suppress_context__ else error.__context__
        error = behind if error.__cause__ is None else error.__cause__


def is_of_another_process(error: BaseException) -> bool:
    """``multiprocessing`` and its kin, and Ray, raise a worker's error anew, with its traceback as a text."""
    return type(error.__cause__).__name__.endswith("RemoteTraceback") or type(error).__name__.startswith("RayTaskError")


def watch(report: Callable[[BaseException], None]) -> None:
    """Call ``report`` with each exception that ends a script or a notebook's cell.

    In this process: a forked child watches for itself.
    """
    pid = os.getpid()
    told = 0

    def tell(error: BaseException | None) -> None:
        nonlocal told
        # Not the exception itself: its frames hold what the script had on the GPU.
        if error is None or id(error) == told or os.getpid() != pid:
            return
        told = id(error)
        with ignoring(BaseException):  # it would be printed below the script's own error
            report(error)

    def look(result: Any) -> None:
        # Of a cell that has ended. A script that it has run is not in its result.
        tell(getattr(result, "error_in_exec", None) or getattr(sys, "last_value", None))

    at_end(tell)
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None:
        shell.events.register("post_run_cell", look)
