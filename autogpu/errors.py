"""autogpu's exceptions, and the test for exceptions that belong to the user's script and have to propagate."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal imports enum
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, FrameType
    from typing import Any, Iterator

# Exit status of a job that should be tried again later. Source: EX_TEMPFAIL of sysexits.h, which schedulers support.
EXIT_TRY_AGAIN = 75

# The most exceptions of a chain that are followed, because an exception may be its own context.
_MOST_REPLACED = 20

# CO_VARARGS of CPython: the function has *arguments.
_TAKES_ANY_NUMBER = 4


class AutoGpuError(Exception):
    """Base class of autogpu's errors. ``what`` is the problem, ``remedy`` is the action that the user can take."""

    def __init__(self, what: str, *, remedy: str) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy

    def __reduce__(self) -> tuple[object, ...]:
        """Support pickle: a process pool sends a worker's exception to the script, which otherwise waits forever."""
        from functools import partial

        return partial(type(self), remedy=self.remedy), (self.what,)


class Stopped(Exception):
    """Base class of errors that carry a problem as facts. ``autogpu.reporting`` has the sentences about it."""

    def __init__(self, problem: Any) -> None:
        super().__init__(problem)
        self.problem = problem


class NoEligibleDevice(AutoGpuError):
    """No GPU satisfies the policy at this moment. The text has the remedy too, because this error ends a script."""

    def __str__(self) -> str:
        return f'{self.what}; the script stops because select.busy = "error"; {self.remedy}'


class WaitTimeout(AutoGpuError):
    """No GPU became free in the time that the policy allows."""


class DriverUnavailable(AutoGpuError):
    """The GPUs can't be read. The user has to fix the machine."""


class InstallError(AutoGpuError):
    """The start-up files can't be written or don't run. The user has to fix the Python environment."""


class ignoring:
    """Like ``contextlib.suppress``, except that an exception of the user's script propagates."""

    def __init__(self, *kinds: type[BaseException]) -> None:
        self._kinds = kinds

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, self._kinds):
            return False
        raise_if_from_script(error)
        return True


def raise_if_from_script(error: BaseException) -> None:
    """Raise the script's exception if ``error`` is one or has replaced one. Each ``except`` block begins with this.

    A signal handler of the script may run between any two lines of autogpu. Its exception must reach the script.
    """
    found = script_error_in(error)
    if found is not None:
        raise found


def is_interruption(error: BaseException) -> bool:
    """True if the script or Ctrl-C interrupted autogpu, so that the next use of a framework must start again."""
    return not isinstance(error, Exception) or script_error_in(error) is not None


def script_error_in(error: BaseException) -> BaseException | None:
    """Return ``error``, or an exception that it replaced, if it belongs to the script; else ``None``.

    An exception belongs to the script if a signal handler, debugger or other thread of the script raised it.
    """
    try:
        return next(filter(_belongs_to_script, _with_replaced(error)), None)
    except Exception as broken:  # this code may fail too, if something is broken in the script's process
        if _interrupted_a_frame(broken):
            raise
        return None


def _with_replaced(error: BaseException) -> Iterator[BaseException]:
    """Yield ``error``, then the exception during whose handling it was raised, and so on.

    Stop before an exception that was not raised in one of the calls in the traceback: a script may use a framework
    while it handles an older exception of its own.
    """
    frames = [frame for frame, _ in _frames(error)]
    for _ in range(_MOST_REPLACED):
        yield error
        replaced = error.__context__
        if replaced is None or replaced.__traceback__ is None or replaced.__traceback__.tb_frame not in frames:
            return
        error = replaced
        frames += [frame for frame, _ in _frames(error)]


def _belongs_to_script(error: BaseException) -> bool:
    if isinstance(error, KeyboardInterrupt) or _is_injected(error):
        return True
    return _has_foreign_frame(error) and (_interrupted_a_frame(error) or _ran_a_signal_handler(error))


def _has_foreign_frame(error: BaseException) -> bool:
    """True if the traceback has a frame outside this package. Most errors have none, and this check is the fastest."""
    own = _package(__name__)
    return any(_package(str(frame.f_globals.get("__name__"))) != own for frame, _ in _frames(error))


def _interrupted_a_frame(error: BaseException) -> bool:
    """True if a signal handler or trace function raised ``error``.

    Python passes such a function the frame that it interrupts.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        interrupted = trace.tb_frame
        trace = trace.tb_next
        if any(argument is interrupted for argument in _arguments(trace.tb_frame)):
            return True
    return False


def _ran_a_signal_handler(error: BaseException) -> bool:
    # _interrupted_a_frame misses a handler that deletes or replaces its argument ``frame``.
    handlers = {_code_of(_signal.getsignal(number)) for number in range(1, _signal.NSIG)} - {None}
    return any(frame.f_code in handlers for frame, _ in _frames(error))


def _code_of(handler: object) -> CodeType | None:
    handler = getattr(handler, "func", handler)  # the function of a functools.partial
    function = handler if hasattr(handler, "__code__") else type(handler).__call__
    code: CodeType | None = getattr(function, "__code__", None)
    return code


def _arguments(frame: FrameType) -> Iterator[object]:
    code = frame.f_code
    values = frame.f_locals
    count = code.co_argcount + code.co_kwonlyargcount
    for name in code.co_varnames[:count]:
        yield values.get(name)
    if code.co_flags & _TAKES_ANY_NUMBER:
        yield from values.get(code.co_varnames[count], ())


def _is_injected(error: BaseException) -> bool:
    """True if a debugger or another thread raised ``error`` in this thread.

    Another thread can inject only a class, from which Python makes an exception without arguments.
    """
    module = str(type(error).__module__)
    if module == "bdb":
        return True
    if error.args:
        return False
    if isinstance(error, OSError):
        return True  # the system's own errors have a number as an argument
    packages = {_package(str(frame.f_globals.get("__name__"))) for frame, _ in _frames(error)}
    return _package(module) not in packages and not _is_pythons(module)


def _package(module: str) -> str:
    return module.partition(".")[0]


def _is_pythons(module: str) -> bool:
    """True if the module is a part of Python, or if its file is not known."""
    file = str(getattr(sys.modules.get(module), "__file__", None) or os.__file__)
    library = os.path.dirname(os.__file__)  # noqa: PTH120  (pathlib may be what broke)
    return module != "__main__" and file.startswith(library) and "-packages" not in file


def where_raised(error: BaseException) -> str:
    *_, (frame, line) = _frames(error)
    return f"{os.path.basename(frame.f_code.co_filename)}:{line}"  # noqa: PTH119  (pathlib may be what broke)


def _frames(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next
