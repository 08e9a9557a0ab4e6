"""The exceptions that autogpu raises on purpose, and the way for those of the user's script through our handlers."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal imports enum
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, FrameType
    from typing import Iterator

# Exit status of a job that should be tried again later. Source: EX_TEMPFAIL of sysexits.h; schedulers know it.
EXIT_TRY_AGAIN = 75

# One may be its own cause.
_MOST_REPLACED = 20

# CO_VARARGS of CPython: the function has *arguments.
_TAKES_ANY_NUMBER = 4


class AutoGpuError(Exception):
    """Base of every error raised on purpose: ``what`` was seen, and the ``remedy``, which is what the user can do."""

    def __init__(self, what: str, *, remedy: str) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy

    def __reduce__(self) -> tuple[object, ...]:
        """Support pickle. A process pool sends a worker's exception to the script, which otherwise waits forever."""
        from functools import partial

        return partial(type(self), remedy=self.remedy), (self.what,)


class NoEligibleDevice(AutoGpuError):
    """No GPU satisfies the policy at this moment. Its text ends a script, so that it has the remedy as well."""

    def __str__(self) -> str:
        return f'{self.what}; select.busy = "error" stops the script; {self.remedy}'


class WaitTimeout(AutoGpuError):
    """No GPU came free in the time that the policy gives."""


class DriverUnavailable(AutoGpuError):
    """Fix the machine: the GPUs can't be read."""


class InstallError(AutoGpuError):
    """Fix the environment: the start-up files can't be written or don't run in it."""


class ignoring:
    """Skip the rest of a block at one of these exceptions, as ``contextlib.suppress``; not at one of the script's."""

    def __init__(self, *kinds: type[BaseException]) -> None:
        self._kinds = kinds

    def __enter__(self) -> None:
        """Nothing needs to be prepared."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, self._kinds):
            return False
        raise_if_from_script(error)
        return True


def raise_if_from_script(error: BaseException) -> None:
    """Raise the exception of the script that came in between; every handler of ours begins with this.

    A signal handler of the script runs between any two lines of ours, and what it raises is for the script alone.
    """
    found = script_error_in(error)
    if found is not None:
        raise found


def is_interruption(error: BaseException) -> bool:
    """True if the script or Ctrl-C interrupted autogpu, so that the next use of a framework must start again."""
    return not isinstance(error, Exception) or script_error_in(error) is not None


def script_error_in(error: BaseException) -> BaseException | None:
    """Return ``error``, or what was replaced by it on its way here, if it belongs to the script; else ``None``.

    It does if a signal handler, a debugger or another thread of the script raised it.
    """
    try:
        return next(filter(_belongs_to_script, _with_replaced(error)), None)
    except Exception as broken:  # what broke in the script's process may break this as well
        if _interrupted_a_frame(broken):
            raise
        return None


def _with_replaced(error: BaseException) -> Iterator[BaseException]:
    """Yield ``error``, then the exception during whose handling it was raised, and so on.

    Only those raised in the calls that ``error`` came through: a script may use a framework while it handles an older
    exception of its own.
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
    return (
        isinstance(error, KeyboardInterrupt)
        or _interrupted_a_frame(error)
        or _ran_a_signal_handler(error)
        or _is_injected(error)
    )


def _interrupted_a_frame(error: BaseException) -> bool:
    """True if Python itself called the function that raised this: it passes the frame that it interrupts.

    Signal handlers and trace functions are called like this.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        interrupted = trace.tb_frame
        trace = trace.tb_next
        if any(argument is interrupted for argument in _arguments(trace.tb_frame)):
            return True
    return False


def _ran_a_signal_handler(error: BaseException) -> bool:
    """True if the function of a registered signal handler is in the traceback.

    :func:`_interrupted_a_frame` misses a handler that deletes or replaces its argument ``frame``.
    """
    handlers = {_code_of(_signal.getsignal(number)) for number in range(1, _signal.NSIG)} - {None}
    return any(frame.f_code in handlers for frame, _ in _frames(error))


def _code_of(handler: object) -> CodeType | None:
    handler = getattr(handler, "func", handler)  # of a functools.partial
    function = handler if hasattr(handler, "__code__") else type(handler).__call__
    code: CodeType | None = getattr(function, "__code__", None)
    return code


def _arguments(frame: FrameType) -> Iterator[object]:
    """Yield the arguments of a call, each of ``*arguments`` as well."""
    code = frame.f_code
    values = frame.f_locals
    count = code.co_argcount + code.co_kwonlyargcount
    for name in code.co_varnames[:count]:
        yield values.get(name)
    if code.co_flags & _TAKES_ANY_NUMBER:
        yield from values.get(code.co_varnames[count], ())


def _is_injected(error: BaseException) -> bool:
    """True if a debugger or another thread raised this here.

    What another thread injects is a class, of which Python makes an exception without arguments.
    """
    module = str(type(error).__module__)
    if module == "bdb":
        return True
    if error.args:
        return False
    if isinstance(error, OSError):
        return True  # the system gives each of its errors a number
    packages = {_package(str(frame.f_globals.get("__name__"))) for frame, _ in _frames(error)}
    return _package(module) not in packages and not _is_pythons(module)


def _package(module: str) -> str:
    return module.partition(".")[0]


def _is_pythons(module: str) -> bool:
    """True if the module is a part of Python, or is not known."""
    file = str(getattr(sys.modules.get(module), "__file__", None) or os.__file__)
    library = os.path.dirname(os.__file__)  # noqa: PTH120  (pathlib may be what broke)
    return module != "__main__" and file.startswith(library) and "-packages" not in file


def where_raised(error: BaseException) -> str:
    """File and line, for a bug report."""
    *_, (frame, line) = _frames(error)
    return f"{os.path.basename(frame.f_code.co_filename)}:{line}"  # noqa: PTH119  (pathlib may be what broke)


def _frames(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """Yield the frames that ran where it was raised, outermost first, with their lines."""
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next
