"""Judge what was seen on a host: what is in place, what can be repaired, and what is not to be trusted."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path

from autogpu.host_setup.host import Host
from autogpu.host_setup.texts import FOLDER_MODE, MAKES_FOLDER, MUTEX_MODE, tmpfiles_text
from autogpu.lease.folder import FALLBACK_FOLDER, HOST_FOLDER, MUTEX
from autogpu.reporting.text import user_name

# For /etc/rc.local and its like, where nothing reads tmpfiles.d. The same result, except for what is there.
BOOT_LINE = f"install -d -m 1777 {HOST_FOLDER} && install -m 444 /dev/null {HOST_FOLDER / MUTEX}"

_FALLBACK_LIMITS = (
    f"Jobs coordinate in {FALLBACK_FOLDER}, which trusts its first user, who owns it and may remove the leases of "
    "others; does not reach into containers, nor into services with a private /tmp and /var/tmp; does not survive a "
    "cleaner of /var/tmp."
)


@dataclass(frozen=True)
class Part:
    """One thing that host-setup cares for, as it was found.

    Attributes:
        problem: What is not as it should be, to follow the path in a sentence; ``""`` if it is in place.
        consequence: What does not work for that reason, or what to do about it, as sentences.
        is_foreign: The problem is that the path is not ours to change.
        is_required: Counts when asked whether all is in place.
    """

    name: str
    path: Path
    problem: str = ""
    consequence: str = ""
    is_foreign: bool = False
    is_required: bool = True

    @property
    def is_in_place(self) -> bool:
        """Whether there is nothing to do."""
        return not self.problem


def parts(host: Host) -> tuple[Part, ...]:
    """Each part, as it is and as it should be."""
    missing = host.policy is None
    policy = Part(
        "policy",
        host.paths.policy,
        "does not exist" if missing else "",
        "The defaults are used, and there is no cap on the GPUs of one user." if missing else "",
        is_required=False,  # to have no policy is a choice
    )
    return (boot_part(host), folder_part(host), mutex_part(host), policy)


def boot_part(host: Host) -> Part:
    """Whether the folder is there again after the next boot."""
    path = host.paths.tmpfiles
    gone = f"{HOST_FOLDER.parent} is emptied at boot, and then jobs coordinate in {FALLBACK_FOLDER} again."
    if not host.is_read_at_boot:
        verb = "does not exist" if host.tmpfiles is None else "has no effect"
        gone += f" Have this line run at boot, for example by /etc/rc.local:\n    {BOOT_LINE}"
        return Part("boot", path, f"{verb}: nothing on this system reads tmpfiles.d at boot", gone, is_required=False)
    if host.tmpfiles is None:
        return Part("boot", path, "does not exist", gone)
    if host.has_own_tmpfiles:
        if MAKES_FOLDER.search(host.tmpfiles):
            return Part("boot", path)
        return Part("boot", path, f"is not autogpu's and does not make {HOST_FOLDER}", gone, is_foreign=True)
    problem = "" if host.tmpfiles == tmpfiles_text() else "differs from what this version writes"
    return Part("boot", path, problem, gone if problem else "")


def folder_part(host: Host) -> Part:
    """Whether all users can work in the folder, and none can remove the leases of others."""
    path, status = host.paths.folder, host.folder
    if status is None:
        return Part("folder", path, "does not exist", _FALLBACK_LIMITS)
    foreign = problem = ""
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        foreign = "is a symbolic link"
    elif not stat.S_ISDIR(status.st_mode):
        foreign = "is not a folder"
    elif status.st_uid not in host.owners:
        foreign = f"belongs to {user_name(status.st_uid)}"
    elif not mode & stat.S_ISVTX and mode & (stat.S_IWGRP | stat.S_IWOTH):
        problem = "is not sticky, so users could remove each other's leases"
    elif mode & FOLDER_MODE != FOLDER_MODE and not host.has_own_tmpfiles:
        problem = "is closed to some users"
    # The search for a folder never passes one by that it does not trust.
    unusable = "Jobs can't rely on it, and they use no other as long as it is there."
    return Part("folder", path, foreign or problem, unusable if foreign or problem else "", bool(foreign))


def mutex_part(host: Host) -> Part:
    """Whether no user can keep the others from choosing."""
    path, status = host.paths.mutex, host.mutex
    foreign = problem = ""
    if status is None:
        problem = "does not exist"
    # With a second name it may be any file of root's, to which a user made a link before root came.
    elif not folder_part(host).is_foreign and not (stat.S_ISREG(status.st_mode) and status.st_nlink == 1):
        foreign = "is not a plain file"
    elif status.st_uid not in host.owners:
        problem = f"belongs to {user_name(status.st_uid)}"
    elif stat.S_IMODE(status.st_mode) & 0o777 != MUTEX_MODE:
        problem = f"has mode {stat.S_IMODE(status.st_mode) & 0o777:04o}"
    consequence = "A user may own it then, and keep all others from choosing."
    wrong = foreign or problem
    return Part("mutex", path, wrong, consequence if wrong and host.folder else "", bool(foreign))
