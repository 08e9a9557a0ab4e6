"""Errors that autogpu raises on purpose, named by what the reader can do about them; and whose another one is."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Iterator

# Exit status of a job that should be tried again later. Source: EX_TEMPFAIL of sysexits.h; schedulers know it.
EXIT_TRY_AGAIN = 75


class AutoGpuError(Exception):
    """Base of every error raised on purpose: ``what`` was seen, and the ``remedy``, which is what the user can do."""

    def __init__(self, what: str, *, remedy: str) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy


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


def is_scripts(error: BaseException) -> bool:
    """It came in between and is for the script alone: from a handler of a signal, a debugger, or another thread."""
    try:
        return _is_of_a_signal(error) or _is_injected(error)
    except Exception:  # what broke in the script's process may break this as well
        return False


def _is_of_a_signal(error: BaseException) -> bool:
    import signal

    # The two that are none, to ignore and the default, are of an Enum: that has a function for calls of its class.
    handlers = [each for each in map(signal.getsignal, range(1, signal.NSIG)) if callable(each)]
    functions = [getattr(handler, "func", handler) for handler in handlers]  # of a functools.partial
    functions += [getattr(type(handler), "__call__", None) for handler in handlers]  # noqa: B004  (of a class)
    codes = [getattr(getattr(each, "__func__", each), "__code__", None) for each in functions]
    return any(frame.f_code in codes for frame, _ in _frames(error))


def _is_injected(error: BaseException) -> bool:
    """Its class is the script's, a debugger's, or of a package none of whose code ran where it was raised."""
    name = type(error).__module__.partition(".")[0]
    if name == "bdb":
        return True
    ran = {str(frame.f_globals.get("__name__")).partition(".")[0] for frame, _ in _frames(error)}
    file = getattr(sys.modules.get(type(error).__module__), "__file__", None) or os.__file__
    library = os.path.dirname(os.__file__)  # noqa: PTH120  (as below)
    is_pythons = name != "__main__" and file.startswith(library) and "-packages" not in file
    # What another thread injects is a class, of which Python makes an error without arguments.
    return not error.args and name not in ran and name != __package__ and not is_pythons


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
