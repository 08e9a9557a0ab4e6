"""Errors that autogpu raises on purpose, named by what the reader can do about them."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.lease import QueueState

# Exit status of a job that should be tried again later. Source: EX_TEMPFAIL of sysexits.h; schedulers know it.
EXIT_TRY_AGAIN = 75


class AutoGpuError(Exception):
    """Base of every error raised on purpose: ``what`` was seen, and the ``remedy`` in the reader's hands."""

    def __init__(self, what: str, *, remedy: str) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy


class NoEligibleDevice(AutoGpuError):
    """Wait or loosen: no GPU satisfies the policy at this moment."""


class WaitTimeout(AutoGpuError):
    """Wait longer or loosen: no GPU came free in the time that the policy gives.

    Attributes:
        state: The queue at the end, to say who holds what.
    """

    def __init__(self, what: str, *, remedy: str, state: QueueState) -> None:
        super().__init__(what, remedy=remedy)
        self.state = state


class DriverUnavailable(AutoGpuError):
    """Fix the machine: the GPUs can't be read."""


class InstallError(AutoGpuError):
    """Fix the environment: the start-up files can't be written or don't run in it."""
