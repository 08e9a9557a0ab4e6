"""Judge what was seen on a host: what is in place, what can be repaired, and what is not to be trusted."""

from __future__ import annotations

import stat

from autogpu.host.model import FOLDER_MODE, MUTEX_MODE, Host, Part
from autogpu.host.proposal import MAKES_FOLDER, tmpfiles_text
from autogpu.lease.folder import FALLBACK_FOLDER, HOST_FOLDER, MUTEX

# For /etc/rc.local and its like, where nothing reads tmpfiles.d. The same result, except for what is there.
BOOT_LINE = f"install -d -m 1777 {HOST_FOLDER} && install -m 444 /dev/null {HOST_FOLDER / MUTEX}"

FALLBACK_LIMITS = (
    "trusts its first user, who owns it and may remove the leases of others",
    "does not reach into containers, nor into services with a private /tmp and /var/tmp",
    "does not survive a cleaner of /var/tmp",
)


def parts(host: Host) -> tuple[Part, ...]:
    """Each part, as it is and as it should be."""
    return (boot_part(host), _folder_part(host), _mutex_part(host), _policy_part(host))


def boot_part(host: Host) -> Part:
    """Whether the folder is there again after the next boot."""
    path = host.places.tmpfiles
    gone = f"{HOST_FOLDER.parent} is emptied at boot, and then jobs coordinate in {FALLBACK_FOLDER} again."
    if host.tmpfiles is None:
        problem = "does not exist"
    elif host.has_own_tmpfiles:
        problem = "" if MAKES_FOLDER.search(host.tmpfiles) else f"is not autogpu's and does not make {HOST_FOLDER}"
    else:
        problem = "" if host.tmpfiles == tmpfiles_text() else "differs from what this version writes"
    if not host.is_read_at_boot:
        verb = "does not exist" if host.tmpfiles is None else "has no effect"
        problem = f"{verb}: nothing on this system reads tmpfiles.d at boot"
        gone += f" Have this line run at boot, for example by /etc/rc.local:\n    {BOOT_LINE}"
    return Part("boot", path, problem, gone if problem else "", host.is_read_at_boot)


def _folder_part(host: Host) -> Part:
    problem = folder_distrust(host) or folder_problem(host)
    consequence = ""
    if host.folder is None:
        consequence = f"Jobs coordinate in {FALLBACK_FOLDER}, which " + "; ".join(FALLBACK_LIMITS) + "."
    elif problem:
        # The search for a folder never passes one by that it does not trust.
        consequence = "Jobs can't rely on it, and they use no other as long as it is there."
    return Part("folder", host.places.folder, problem, consequence, True)


def folder_distrust(host: Host) -> str:
    """What makes the folder somebody else's, which no repair changes."""
    status = host.folder
    if status is None:
        return ""
    if stat.S_ISLNK(status.st_mode):
        return "is a symbolic link"
    if not stat.S_ISDIR(status.st_mode):
        return "is not a folder"
    return "" if status.st_uid in host.owners else f"belongs to {user_name(status.st_uid)}"


def folder_problem(host: Host) -> str:
    """What a setup makes or repairs in the folder."""
    if host.folder is None:
        return "does not exist"
    mode = stat.S_IMODE(host.folder.st_mode)
    if not mode & stat.S_ISVTX and mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "is not sticky, so users could remove each other's leases"
    if mode & FOLDER_MODE != FOLDER_MODE and not host.has_own_tmpfiles:
        return "is closed to some users"
    return ""


def _mutex_part(host: Host) -> Part:
    problem = mutex_distrust(host) or mutex_problem(host)
    consequence = "A user may own it then, and keep all others from choosing." if problem and host.folder else ""
    return Part("mutex", host.places.mutex, problem, consequence, True)


def mutex_distrust(host: Host) -> str:
    """What makes the mutex a file that no setup may touch."""
    status = host.mutex
    if status is None or folder_distrust(host):
        return ""
    # With a second name it may be any file of root's, to which a user made a link before root came.
    return "" if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 else "is not a plain file"


def mutex_problem(host: Host) -> str:
    """What a setup makes or repairs in the mutex."""
    status = host.mutex
    if status is None:
        return "does not exist"
    if status.st_uid not in host.owners:
        return f"belongs to {user_name(status.st_uid)}"
    mode = stat.S_IMODE(status.st_mode) & 0o777
    return "" if mode == MUTEX_MODE else f"has mode {mode:04o}"


def _policy_part(host: Host) -> Part:
    missing = host.policy is None
    return Part(
        "policy",
        host.places.policy,
        "does not exist" if missing else "",
        "The defaults hold, and no cap on the GPUs of one person." if missing else "",
        # To have no policy is an administrator's good right.
        is_required=False,
    )


def user_name(uid: int) -> str:
    """As people know the user."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
