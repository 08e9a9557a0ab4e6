"""Errors that autogpu raises on purpose, named by what the reader can do about them; and whose another one is."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Iterator

# Exit status of a job that should be tried again later. Source: EX_TEMPFAIL of sysexits.h; schedulers know it.
EXIT_TRY_AGAIN = 75


class AutoGpuError(Exception):
    """Base of every error raised on purpose: ``what`` was seen, and the ``remedy``, which is what the user can do.

    ``option`` is the remedy with the options of a command of ``autogpu``, where it has some.
    """

    def __init__(self, what: str, *, remedy: str, option: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy
        self.option = option or remedy


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


def is_of_a_signal(error: BaseException) -> bool:
    """A handler of a signal raised it, which runs at any moment and is for the script alone."""
    try:
        import signal

        handlers = [signal.getsignal(number) for number in range(1, signal.NSIG)]
        functions = [getattr(handler, "func", handler) for handler in handlers]  # of a functools.partial
        functions += [getattr(type(handler), "__call__", None) for handler in handlers]  # noqa: B004  (of a class)
        codes = [getattr(getattr(each, "__func__", each), "__code__", None) for each in functions]
        return any(code in codes for code, _ in _frames(error))
    except Exception:  # what broke in the script's process may break this as well
        return False


def where_raised(error: BaseException) -> str:
    """File and line, for a bug report."""
    *_, (code, line) = _frames(error)
    return f"{os.path.basename(code.co_filename)}:{line}"  # noqa: PTH119  (pathlib may be what broke)


def _frames(error: BaseException) -> Iterator[tuple[CodeType, int]]:
    """Yield the code that ran where it was raised, outermost first, with its line."""
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame.f_code, trace.tb_lineno
        trace = trace.tb_next
