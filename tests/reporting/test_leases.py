"""Sentences about problems that prevent or limit a claim, and the remedy for each."""

import errno

import pytest

from autogpu.lease import Fault, LeaseProblem
from autogpu.reporting.leases import claim_problem, lease_problem

SETUP = "if AUTOGPU_LEASE_DIR is set, unset it; else ask the administrator to run `autogpu host-setup`"
REMOVE = "remove it, or ask the administrator to run `autogpu host-setup`"
ANOTHER = "set AUTOGPU_LEASE_DIR to a folder on a local file system"
HELD = "waited 2 s for the lock of /x, held by"
END = "if that process is stuck, end it or ask the administrator"


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
            "set it to the full path",
        ),
        (LeaseProblem(Fault.NO_FOLDER_YET, "/x"), "there is no lease folder /x yet", "the first claim makes it"),
        (
            LeaseProblem(Fault.NO_PARENT, "/y/x"),
            "the lease folder /y/x can't be made: there is no folder /y",
            "make /y, or set AUTOGPU_LEASE_DIR to another folder",
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
            "set AUTOGPU_LEASE_DIR to a folder on a writable file system",
        ),
        (refused(errno.EACCES), "the lease folder /x can't be used: no", SETUP),
        (refused(errno.EPERM), "the lease folder /x can't be used: no", SETUP),
        (
            refused(errno.ENOENT),
            "the lease folder /x can't be used: no",
            "start again: the folder was removed, and the next claim makes it",
        ),
        (
            refused(errno.EMFILE),
            "the lease folder /x can't be used: no",
            "let this process open more files (ulimit -n)",
        ),
        (refused(errno.ENOLCK), "the lease folder /x can't be used: no", ANOTHER),
        (refused(None), "the lease folder /x can't be used: no", ANOTHER),
        (LeaseProblem(Fault.SYMLINK, "/x"), "the lease folder /x is a symbolic link", REMOVE),
        (LeaseProblem(Fault.NO_DIRECTORY, "/x"), "the lease folder /x is not a folder", REMOVE),
        (
            LeaseProblem(Fault.NOT_STICKY, "/x"),
            "the lease folder /x is not sticky, so users could remove each other's leases",
            "its owner or root can run `chmod +t /x`",
        ),
        (
            LeaseProblem(Fault.OTHERS, "/x", uid=7),
            "the lease folder /x belongs to uid 7 alone",
            "ask that user to remove it, or the administrator to run `autogpu host-setup`",
        ),
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
        (True, "nothing is claimed, so other jobs don't see this one"),
        (False, "claiming without the host's lock, which is safe but slower"),
    ],
)
def test_line_about_a_claim_has_the_effect_of_the_problem_and_its_cause(is_unclaimed, begin):
    line = f"{begin}: other processes keep claiming the same GPUs; start again"
    assert claim_problem(LeaseProblem(Fault.COLLISIONS), is_unclaimed=is_unclaimed) == line
