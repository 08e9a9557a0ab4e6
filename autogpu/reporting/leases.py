"""Sentences about leases: problems of a claim, and files that can't be read."""

from __future__ import annotations

import errno

from autogpu.lease.model import Fault
from autogpu.text import printable
from autogpu.users import user_name
from autogpu.variables import LEASE_DIR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.lease import LeaseProblem, UnreadableFile

_HOST_SETUP = f"if {LEASE_DIR} is set, unset it; else ask the administrator to run `autogpu host-setup`"
_REMOVE = "remove it, or ask the administrator to run `autogpu host-setup`"

# Description and remedy of each fault.
_FAULTS = {
    Fault.NO_FLOCK: ("this system has no flock, so GPUs can't be claimed", "use Linux or WSL2"),
    Fault.RELATIVE_PATH: (LEASE_DIR + " is not an absolute path: {path!r}", "set it to the full path"),
    Fault.NO_FOLDER_YET: ("there is no lease folder {path} yet", "the first claim makes it"),
    Fault.NO_PARENT: (
        "the lease folder {path} can't be made: there is no folder {parent}",
        f"make {{parent}}, or set {LEASE_DIR} to another folder",
    ),
    Fault.NOT_REACHED: ("the lease folder {path} can't be used: {error}", _HOST_SETUP),
    Fault.UNUSABLE: ("the lease folder {path} can't be used: {error}", "{remedy}"),
    Fault.SYMLINK: ("the lease folder {path} is a symbolic link", _REMOVE),
    Fault.NO_DIRECTORY: ("the lease folder {path} is not a folder", _REMOVE),
    Fault.NOT_STICKY: (
        "the lease folder {path} is not sticky, so users could remove each other's leases",
        "its owner or root can run `chmod +t {path}`",
    ),
    Fault.OTHERS: (
        "the lease folder {path} belongs to uid {uid} alone",
        "ask that user to remove it, or the administrator to run `autogpu host-setup`",
    ),
    Fault.MUTEX_HELD: (
        "waited {stuck_s:.0f} s for the lock of {path}, held by {holder}",
        "if that process is stuck, end it or ask the administrator",
    ),
    Fault.COLLISIONS: ("other processes keep claiming the same GPUs", "start again"),
    Fault.INTERNAL: ("internal error ({error})", "AUTOGPU=0 turns autogpu off"),
}

# Remedies for an unusable lease folder, keyed by errno.
_REMEDIES = {
    errno.ENOSPC: "free some space or inodes on its file system",
    errno.EDQUOT: "stay below your quota on its file system",
    errno.EROFS: f"set {LEASE_DIR} to a folder on a writable file system",
    errno.EACCES: _HOST_SETUP,
    errno.EPERM: _HOST_SETUP,
    errno.ENOENT: "start again: the folder was removed, and the next claim makes it",
    errno.EMFILE: "let this process open more files (ulimit -n)",
}


def lease_problem(problem: LeaseProblem) -> tuple[str, str]:
    """Return the problem of a claim, and its remedy."""
    facts = {
        "path": problem.path,
        "parent": problem.path.rpartition("/")[0] or "/",
        "error": problem.error,
        "remedy": _REMEDIES.get(problem.number or 0, f"set {LEASE_DIR} to a folder on a local file system"),
        "uid": problem.uid,
        "holder": _mutex_holder(problem.holder),
        "stuck_s": problem.stuck_s,
    }
    what, remedy = _FAULTS[problem.fault]
    return printable(what.format(**facts)), printable(remedy.format(**facts))


def claim_problem(problem: LeaseProblem, *, is_unclaimed: bool) -> str:
    """Return the line for a claim without the host's lock, or for a process that could claim nothing."""
    begin = "claiming without the host's lock, which is safe but slower"
    if is_unclaimed:
        begin = "nothing is claimed, so other jobs don't see this one"
    what, remedy = lease_problem(problem)
    return f"{begin}: {what}; {remedy}"


def _mutex_holder(holder: tuple[int, int | None] | None) -> str:
    if holder is None:
        return "a process that can't be seen from here"
    pid, uid = holder
    return f"pid {pid}, which has ended, or a process that it forked" if uid is None else f"pid {pid} (uid {uid})"


def folder_on_fuse(path: str) -> tuple[str, str]:
    """Return the problem of a lease folder on FUSE, and the remedy."""
    where = f"the lease folder {printable(path)} is on a FUSE file system"
    remedy = f"let all jobs use the same folder on a local file system ({LEASE_DIR})"
    return f"{where}: jobs that open the folder without FUSE don't see claims made through FUSE", remedy


def unreadable_file(file: UnreadableFile) -> str:
    """Return the name of an ignored lease file, its owner and the error."""
    owner = "" if file.uid is None else f" of {user_name(file.uid)}"
    return f"{printable(file.name)}{owner} can't be read ({printable(str(file.error.strerror))})"
