"""Read a policy file safely: what may be opened, and whose files count."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from autogpu.process import UNKNOWN_UID

LARGEST_FILE_BYTES = 1024**2
_MOST_LINKS = 40

# How the reason begins where the file itself can be written, which its owner can change.
ITS_MODE = "it can be written"


class UnreadableFile(Exception):
    """A file is there and can't be read; the text says why, to follow the file's name in a sentence."""


def read_file(path: Path, *, judge: bool) -> tuple[bytes, str] | None:
    """Read a regular file of bounded size, and tell why it does not count, as the end of a sentence; ``""`` if it does.

    Never blocks on a pipe or a device. What is judged is the descriptor that is read from, so that the file can't
    be swapped in between.

    Args:
        path: The file, or a link to it; ``None`` is returned where there is none.
        judge: Ask who could have written it. Not asked where there are no owners (Windows).

    Raises:
        UnreadableFile: It exists, but it is not a file, too large, or not permitted.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        # Also a folder that may not be entered, as with a foreign HOME kept by sudo: no file is known there.
        return None
    try:
        # Opening a device can already have an effect, so it is asked before, and again after opening.
        if not stat.S_ISREG(mode):
            raise UnreadableFile("is not a regular file")
        with open(path, "rb", opener=_opened) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise UnreadableFile("is not a regular file")
            distrust = _distrust(path, file.fileno(), found) if judge and hasattr(os, "geteuid") else ""
            content = file.read(LARGEST_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnreadableFile(f"can't be read ({error.strerror or error})") from None
    if len(content) > LARGEST_FILE_BYTES:
        raise UnreadableFile(f"is larger than {LARGEST_FILE_BYTES // 1024} KiB")
    return content, distrust


def _opened(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))


def _distrust(path: Path, descriptor: int, found: os.stat_result) -> str:
    """Why another user could have written the opened file, or put it or a link to it where it is."""
    foreign = _foreign(descriptor, found)
    if foreign:
        return f"it {foreign}"
    place = path
    for _ in range(_MOST_LINKS):
        foreign = _foreign(place.parent, place.parent.stat())
        if foreign:
            return f"its folder {place.parent} {foreign}"
        if not place.is_symlink():
            now = place.stat()
            is_same = (now.st_dev, now.st_ino) == (found.st_dev, found.st_ino)
            return "" if is_same else "it was replaced while it was read"
        place = place.parent / os.readlink(str(place))
    return "it is behind too many links"


def _foreign(place: int | Path, found: os.stat_result) -> str:
    if found.st_uid == UNKNOWN_UID or found.st_uid not in (os.geteuid(), 0):
        return f"belongs to uid {found.st_uid}"
    if found.st_mode & stat.S_IWOTH:
        return "can be written by every user"
    if found.st_mode & stat.S_IWGRP and (_has_access_list(place) or not _is_private_group(found)):
        return f"can be written by group {found.st_gid}"
    return ""


def _is_private_group(found: os.stat_result) -> bool:
    """The group of a file has its owner as only member, as far as the group says.

    Debian, Ubuntu and Fedora give every user a group of the same name and an umask of 002, so refusing all
    that a group can write would refuse every project there. A primary group that many share ("users") has
    another name. An account that was made with another user's group as its primary one goes unseen: only a
    listing of all accounts would show it, which takes minutes on a host with a directory service.
    """
    import grp
    import pwd

    try:
        owner, group = pwd.getpwuid(found.st_uid), grp.getgrgid(found.st_gid)
    except KeyError:
        return False
    is_own = group.gr_name == owner.pw_name and owner.pw_gid == found.st_gid
    return is_own and set(group.gr_mem) <= {owner.pw_name}


def _has_access_list(place: int | Path) -> bool:
    # With an access control list the group bits are its mask: they do not say who may write.
    if not hasattr(os, "getxattr"):
        return False
    try:
        return bool(os.getxattr(place, "system.posix_acl_access"))
    except OSError:
        return False
