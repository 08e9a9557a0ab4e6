"""Sentences about leases: what stands in the way of one, and what the user can do."""

import errno

import pytest

from autogpu.lease import Fault, LeaseProblem
from autogpu.reporting.leases import claim_problem, lease_problem

SETUP = "`autogpu host-setup` as root makes one that all users of the host share"
REPAIR = f"remove it or repair it; {SETUP}"
ANOTHER = "name another folder by AUTOGPU_LEASE_DIR, on a local file system"
HELD = "the lock of /x could not be had for 2 s: it is held by"
END = "if it is stuck, end that process"


def refused(number, fault=Fault.UNUSABLE):
    return LeaseProblem(fault, "/x", "no", number)


def held(holder):
    return LeaseProblem(Fault.MUTEX_HELD, "/x", holder=holder, stuck_s=2.2)


@pytest.mark.parametrize(
    ("problem", "what", "remedy"),
    [
        (LeaseProblem(Fault.NO_FLOCK), "this system has no flock, so GPUs can't be claimed", "use Linux or WSL2"),
        (
            LeaseProblem(Fault.RELATIVE_PATH, "~/{a}"),
            "AUTOGPU_LEASE_DIR is not an absolute path: '~/{a}'",
            "write it out in full",
        ),
        (LeaseProblem(Fault.NO_FOLDER_YET, "/x"), "there is no lease folder /x yet", "the first claim makes it"),
        (
            LeaseProblem(Fault.NO_PARENT, "/y/x"),
            "the lease folder /y/x can't be made: there is no folder /y",
            "make that, or name another folder by AUTOGPU_LEASE_DIR",
        ),
        (refused(errno.ENOENT, Fault.NOT_REACHED), "the lease folder /x can't be used: no", SETUP),
        (
            refused(errno.ENOSPC),
            "the lease folder /x can't be used: no",
            "free some space or inodes on its file system",
        ),
        (refused(errno.EDQUOT), "the lease folder /x can't be used: no", "stay below your quota on its file system"),
        (
            refused(errno.EROFS),
            "the lease folder /x can't be used: no",
            "name a folder on a writable file system by AUTOGPU_LEASE_DIR",
        ),
        (refused(errno.EACCES), "the lease folder /x can't be used: no", SETUP),
        (refused(errno.EPERM), "the lease folder /x can't be used: no", SETUP),
        (
            refused(errno.ENOENT),
            "the lease folder /x can't be used: no",
            "start again: it has been removed, and will be made again",
        ),
        (
            refused(errno.EMFILE),
            "the lease folder /x can't be used: no",
            "let this process open more files (ulimit -n)",
        ),
        (refused(errno.ENOLCK), "the lease folder /x can't be used: no", ANOTHER),
        (refused(None), "the lease folder /x can't be used: no", ANOTHER),
        (LeaseProblem(Fault.SYMLINK, "/x"), "the lease folder /x is a symbolic link", REPAIR),
        (LeaseProblem(Fault.NO_DIRECTORY, "/x"), "the lease folder /x is not a folder", REPAIR),
        (
            LeaseProblem(Fault.NOT_STICKY, "/x"),
            "the lease folder /x is not sticky, so users could remove each other's leases",
            "`chmod +t /x`",
        ),
        (LeaseProblem(Fault.OTHERS, "/x", uid=7), "the lease folder /x belongs to uid 7 alone", REPAIR),
        (held((12, 7)), f"{HELD} pid 12 (uid 7)", END),
        (held((12, None)), f"{HELD} pid 12, which has ended, or a process that it forked", END),
        (held(None), f"{HELD} a process that can't be seen from here", END),
        (LeaseProblem(Fault.COLLISIONS), "other processes keep claiming the same GPUs", "start again"),
        (LeaseProblem(Fault.INTERNAL, error="no\x1bway"), "internal error (no\\x1bway)", "AUTOGPU=0 turns autogpu off"),
    ],
)
def test_each_lease_problem_has_a_sentence_and_a_remedy(problem, what, remedy):
    assert lease_problem(problem) == (what, remedy)


@pytest.mark.parametrize(
    ("is_unclaimed", "begin"),
    [
        (True, "nothing is claimed, so that other jobs don't see this one"),
        (False, "claiming without the host's lock"),
    ],
)
def test_line_about_a_claim_says_what_it_lacks(is_unclaimed, begin):
    line = f"{begin}: other processes keep claiming the same GPUs; start again"
    assert claim_problem(LeaseProblem(Fault.COLLISIONS), is_unclaimed=is_unclaimed) == line
