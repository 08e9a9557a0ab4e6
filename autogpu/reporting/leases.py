"""Sentences about leases: what stood in the way of a claim, and files that nobody can read."""

from __future__ import annotations

from autogpu.text import printable
from autogpu.users import user_name
from autogpu.variables import LEASE_DIR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.lease import LeaseUnavailable, UnreadableFile


def lease_problem(error: LeaseUnavailable, *, is_unclaimed: bool) -> str:
    """Return the line for a claim without the host's lock, or for a process that could claim nothing."""
    what = "claiming without the host's lock"
    if is_unclaimed:
        what = "nothing is claimed, so that other jobs don't see this one"
    return f"{what}: {printable(error.what)}; {printable(error.remedy)}"


def folder_on_fuse(path: str) -> tuple[str, str]:
    """Return what is wrong with such a lease folder, and the remedy."""
    where = f"the lease folder {printable(path)} is on a FUSE file system"
    remedy = f"let all jobs use the same folder on a local file system ({LEASE_DIR})"
    return f"{where}: jobs that use it without FUSE see no claim made here", remedy


def unreadable_file(file: UnreadableFile) -> str:
    """Name a file in the lease folder that counts for nothing, its owner and the error."""
    owner = "" if file.uid is None else f" of {user_name(file.uid)}"
    return f"{printable(file.name)}{owner} can't be read ({printable(str(file.error.strerror))})"
