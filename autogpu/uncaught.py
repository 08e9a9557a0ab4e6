"""Exceptions that end a script or a notebook's cell: observe them, or print a line in place of the traceback."""

from __future__ import annotations

import atexit
import os
import sys
from types import TracebackType
from typing import Any, Callable, Iterator

from autogpu.errors import ignoring
from autogpu.process import is_worker
from autogpu.stderr import say

# The attribute of an exception that contains the line to print in place of its traceback.
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

    The exception is ``sys.last_value``, which Python sets before it prints a traceback, whatever ``sys.excepthook`` is.
    Python does not set it for ``SystemExit``, nor for an error in another thread, which does not end the process.

    In a worker of ``multiprocessing``, it is the exception that is being handled. From Python 3.13 on, a worker's exit
    functions can't find out how it ended, so ``look`` is not called there.
    """
    if not is_worker():
        atexit.register(lambda: look(getattr(sys, "last_value", None)))
    elif sys.version_info < (3, 13):
        from multiprocessing.util import Finalize

        Finalize(None, lambda: look(_of_worker()), exitpriority=0)


def _of_worker() -> BaseException | None:
    """Return the exception that ends this worker. ``multiprocessing`` prints it and then ends the worker normally."""
    error = sys.exc_info()[1]
    # Workers of some frameworks save the error for their parent, and then call sys.exit().
    return error.__context__ if isinstance(error, SystemExit) else error


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield ``error``, then the causes and contexts that its traceback shows, latest first."""
    for _ in range(20):  # an exception may be its own cause
        if error is None:
            return
        yield error
        behind = None if error.__suppress_context__ else error.__context__
        error = behind if error.__cause__ is None else error.__cause__


def is_of_another_process(error: BaseException) -> bool:
    """True if ``multiprocessing``, a similar library or Ray raised a worker's error again, with a text as traceback."""
    return type(error.__cause__).__name__.endswith("RemoteTraceback") or type(error).__name__.startswith("RayTaskError")


def watch(report: Callable[[BaseException], None]) -> None:
    """Call ``report`` with each exception that ends a script or a notebook's cell.

    Only in this process: a forked child has to call this function itself.
    """
    pid = os.getpid()
    told = 0

    def tell(error: BaseException | None) -> None:
        nonlocal told
        # Remember the id, not the exception, whose frames would keep the script's data on the GPU alive.
        if error is None or id(error) == told or os.getpid() != pid:
            return
        told = id(error)
        with ignoring(BaseException):  # an error of ours would be printed below the script's
            report(error)

    def look(result: Any) -> None:
        # IPython passes the result of a cell that has ended. The result lacks the error of a script that the cell ran.
        tell(getattr(result, "error_in_exec", None) or getattr(sys, "last_value", None))

    at_end(tell)
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None:
        shell.events.register("post_run_cell", look)
