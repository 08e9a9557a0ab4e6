"""Sentences about leases: what stood in the way of a claim, and files that nobody can read."""

from __future__ import annotations

import errno

from autogpu.lease.model import Fault
from autogpu.text import printable
from autogpu.users import user_name
from autogpu.variables import LEASE_DIR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.lease import LeaseProblem, UnreadableFile

_HOST_SETUP = "`autogpu host-setup` as root makes one that all users of the host share"
_REPAIR = f"remove it or repair it; {_HOST_SETUP}"

# What is seen, and what the user can do.
_FAULTS = {
    Fault.NO_FLOCK: ("this system has no flock, so GPUs can't be claimed", "use Linux or WSL2"),
    Fault.RELATIVE_PATH: (LEASE_DIR + " is not an absolute path: {path!r}", "write it out in full"),
    Fault.NO_FOLDER_YET: ("there is no lease folder {path} yet", "the first claim makes it"),
    Fault.NO_PARENT: (
        "the lease folder {path} can't be made: there is no folder {parent}",
        f"make that, or name another folder by {LEASE_DIR}",
    ),
    Fault.NOT_REACHED: ("the lease folder {path} can't be used: {error}", _HOST_SETUP),
    Fault.UNUSABLE: ("the lease folder {path} can't be used: {error}", "{remedy}"),
    Fault.SYMLINK: ("the lease folder {path} is a symbolic link", _REPAIR),
    Fault.NO_DIRECTORY: ("the lease folder {path} is not a folder", _REPAIR),
    Fault.NOT_STICKY: (
        "the lease folder {path} is not sticky, so users could remove each other's leases",
        "`chmod +t {path}`",
    ),
    Fault.OTHERS: ("the lease folder {path} belongs to uid {uid} alone", _REPAIR),
    Fault.MUTEX_HELD: (
        "the lock of {path} could not be had for {stuck_s:.0f} s: it is held by {holder}",
        "if it is stuck, end that process",
    ),
    Fault.COLLISIONS: ("other processes keep claiming the same GPUs", "start again"),
    Fault.INTERNAL: ("internal error ({error})", "AUTOGPU=0 turns autogpu off"),
}

# By the system's error.
_REMEDIES = {
    errno.ENOSPC: "free some space or inodes on its file system",
    errno.EDQUOT: "stay below your quota on its file system",
    errno.EROFS: f"name a folder on a writable file system by {LEASE_DIR}",
    errno.EACCES: _HOST_SETUP,
    errno.EPERM: _HOST_SETUP,
    errno.ENOENT: "start again: it has been removed, and will be made again",
    errno.EMFILE: "let this process open more files (ulimit -n)",
}


def lease_problem(problem: LeaseProblem) -> tuple[str, str]:
    """Return what stands in the way of a lease, and what the user can do."""
    facts = {
        "path": problem.path,
        "parent": problem.path.rpartition("/")[0] or "/",
        "error": problem.error,
        "remedy": _REMEDIES.get(problem.number or 0, f"name another folder by {LEASE_DIR}, on a local file system"),
        "uid": problem.uid,
        "holder": _mutex_holder(problem.holder),
        "stuck_s": problem.stuck_s,
    }
    what, remedy = _FAULTS[problem.fault]
    return printable(what.format(**facts)), printable(remedy.format(**facts))


def claim_problem(problem: LeaseProblem, *, is_unclaimed: bool) -> str:
    """Return the line for a claim without the host's lock, or for a process that could claim nothing."""
    begin = "claiming without the host's lock"
    if is_unclaimed:
        begin = "nothing is claimed, so that other jobs don't see this one"
    what, remedy = lease_problem(problem)
    return f"{begin}: {what}; {remedy}"


def _mutex_holder(holder: tuple[int, int | None] | None) -> str:
    if holder is None:
        return "a process that can't be seen from here"
    pid, uid = holder
    return f"pid {pid}, which has ended, or a process that it forked" if uid is None else f"pid {pid} (uid {uid})"


def folder_on_fuse(path: str) -> tuple[str, str]:
    """Return what is wrong with such a lease folder, and the remedy."""
    where = f"the lease folder {printable(path)} is on a FUSE file system"
    remedy = f"let all jobs use the same folder on a local file system ({LEASE_DIR})"
    return f"{where}: jobs that use it without FUSE see no claim made here", remedy


def unreadable_file(file: UnreadableFile) -> str:
    """Name a file in the lease folder that counts for nothing, its owner and the error."""
    owner = "" if file.uid is None else f" of {user_name(file.uid)}"
    return f"{printable(file.name)}{owner} can't be read ({printable(str(file.error.strerror))})"
