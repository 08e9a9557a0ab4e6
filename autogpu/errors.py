"""Errors that autogpu raises on purpose, named by what the reader can do about them."""

from __future__ import annotations

# Exit status of a job that should be tried again later. Source: EX_TEMPFAIL of sysexits.h; schedulers know it.
EXIT_TRY_AGAIN = 75


class AutoGpuError(Exception):
    """Base of every error raised on purpose: ``what`` was seen, and the ``remedy``, which is what the user can do.

    Attributes:
        option: The remedy with the options of a command of ``autogpu``, where it has some.
    """

    def __init__(self, what: str, *, remedy: str, option: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy
        self.option = option or remedy


class NoEligibleDevice(AutoGpuError):
    """No GPU satisfies the policy at this moment. Its text ends a script, so that it has the remedy as well."""

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}"


class WaitTimeout(AutoGpuError):
    """No GPU came free in the time that the policy gives."""


class DriverUnavailable(AutoGpuError):
    """Fix the machine: the GPUs can't be read."""


class InstallError(AutoGpuError):
    """Fix the environment: the start-up files can't be written or don't run in it."""
