"""Finds users' names and the owners of processes, and builds commands that root must run."""

from __future__ import annotations

import os
from pathlib import Path

from autogpu.errors import raise_if_from_script
from autogpu.process import read_bytes
from autogpu.text import printable

SUBORDINATE_IDS = "/etc/subuid"

# In a user namespace, the kernel shows this uid for every user that the namespace does not map, perhaps even for the
# user of this process. So this uid identifies nobody. Source: proc(5), overflowuid.
UNKNOWN_UID = 65534


def sudo() -> str:
    """Return the prefix of a command for root: ``""`` in a root shell, else ``"sudo "``, also if sudo runs autogpu."""
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    return "" if is_root and "SUDO_USER" not in os.environ else "sudo "


def host_setup_command(sudo: str) -> str:
    """Return the command by which root sets up the host so that the jobs of all its users coordinate.

    sudo sets its own PATH, which lacks virtual environments. So the user's shell must find the autogpu program.
    """
    return "sudo $(command -v autogpu) host-setup" if sudo else "autogpu host-setup"


def is_person(uid: int) -> bool:
    """True if a user is neither root nor a system user.

    The ``sitecustomize.py`` of ``autogpu host-setup --all-pythons`` repeats this rule.
    Source: login.defs(5), and section 9.2.2 of Debian's policy.
    """
    return 1000 <= uid < 60000 or uid > 65535


def user_name(uid: int) -> str:
    """Return the name of a user; a text such as ``uid 4711`` if this host has no user with that number."""
    try:
        import pwd  # not on Windows

        return printable(pwd.getpwuid(uid).pw_name, 32)
    except (ImportError, KeyError) as error:
        raise_if_from_script(error)
        return f"uid {uid}"


def owner(pid: int) -> int | None:
    """Return the effective user of the process ``pid``; ``None`` if there is no such process.

    The folder ``/proc/<pid>`` belongs to that user. If the process is not dumpable, the folder's files belong to root.
    Source: ``task_dump_owner()`` of ``fs/proc/base.c``.
    """
    try:
        return user_of(Path(f"/proc/{pid}").stat().st_uid)
    except OSError as error:
        raise_if_from_script(error)
        return None


_users: dict[int, int] = {}
_subordinate_ids: list[tuple[str, int, int]] | None = None


def user_of(uid: int) -> int:
    """Return the user who may use ``uid`` in containers; else ``uid`` itself. Source: ``/etc/subuid``, subuid(5)."""
    global _subordinate_ids
    if _subordinate_ids is None:
        _subordinate_ids = _read_subordinate_ids()
    if uid not in _users:
        names = [name for name, first, count in _subordinate_ids if first <= uid < first + count]
        _users[uid] = _uid_of(names[0], uid) if names else uid
    return _users[uid]


def _uid_of(name: str, unknown: int) -> int:
    import pwd

    try:
        return int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
    except KeyError as error:
        raise_if_from_script(error)
        return unknown


def _read_subordinate_ids() -> list[tuple[str, int, int]]:
    try:
        text = read_bytes(SUBORDINATE_IDS).decode(errors="replace")
    except OSError as error:
        raise_if_from_script(error)
        return []
    lines = [line.strip().split(":") for line in text.splitlines()]
    ranges = [line for line in lines if len(line) == 3 and line[1].isdecimal() and line[2].isdecimal()]
    return [(name, int(first), int(count)) for name, first, count in ranges]
