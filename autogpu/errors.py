"""Errors that autogpu raises on purpose, named by what the reader can do about them."""

from __future__ import annotations


class AutoGpuError(Exception):
    """Base of every error raised on purpose: ``what`` was seen, and the ``remedy`` in the reader's hands."""

    def __init__(self, what: str, *, remedy: str) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy


class NoEligibleDevice(AutoGpuError):
    """Wait or loosen: no GPU satisfies the policy at this moment."""


class InstallError(AutoGpuError):
    """Fix the environment: the start-up files can't be written or don't run in it."""
