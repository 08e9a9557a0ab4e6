"""Other users of the server: real ones, where we are root, with names that only the lab knows."""

from __future__ import annotations

import ctypes
import os
import pwd
import stat
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Mapping, Sequence

PASSWD = Path("/etc/passwd")
FIRST_UID = 61_200
NO_NEW_USERS: Mapping[str, int] = {}

_NEW_MOUNTS = 0x00020000  # CLONE_NEWNS
_PRIVATE, _RECURSIVE, _BIND = 1 << 18, 1 << 14, 1 << 12  # MS_PRIVATE, MS_REC, MS_BIND
_DETACH = 2  # MNT_DETACH
_SET_DUMPABLE, _SET_DEATH_SIGNAL = 4, 1

_libc = ctypes.CDLL(None, use_errno=True)


def add_users(names: Sequence[str], folder: Path) -> Mapping[str, int]:
    """Give each name a uid of its own, and this process and its children a view of the host in which both are known.

    Nothing of the host changes: ``/etc/passwd`` is another file in a mount namespace of the lab alone.

    Returns:
        Uids by name; empty where we are not root, or where others can't reach the server's folder.
    """
    if os.getuid() != 0 or not is_reachable(folder):
        return NO_NEW_USERS
    taken = {each.pw_uid for each in pwd.getpwall()}
    free = (uid for uid in range(FIRST_UID, 65_000) if uid not in taken)
    users = dict(zip(names, free))
    ours = "".join(f"{name}:*:{uid}:{uid}::/nonexistent:/bin/sh\n" for name, uid in users.items())
    known = folder / "passwd"
    known.write_text(PASSWD.read_text(encoding="utf-8") + ours, encoding="utf-8")
    known.chmod(0o644)
    try:
        _done(_libc.unshare(_NEW_MOUNTS))
        _done(_libc.mount(b"none", b"/", None, ctypes.c_ulong(_PRIVATE | _RECURSIVE), None))
        _done(_libc.mount(os.fsencode(known), os.fsencode(PASSWD), None, ctypes.c_ulong(_BIND), None))
    except OSError:
        # In a container that may not; the uids are real all the same, and are shown as numbers.
        pass
    return users


@contextmanager
def opened_to_users(python: Path, users: Mapping[str, int]) -> Iterator[Path]:
    """The interpreter where all users reach it: one in root's home is elsewhere too, in the lab's view of the host."""
    prefix = python.parent.parent
    views = {os.readlink(f"/proc/{pid}/ns/mnt") for pid in (os.getpid(), os.getppid()) if users}
    if is_reachable(python.parent) or len(views) < 2:  # nothing of the host changes
        yield python
        return
    # No part of the lab's folder, which is removed with all that is in it.
    place = Path(tempfile.mkdtemp(prefix="autogpu-lab-python-"))
    place.chmod(0o755)
    try:
        is_mounted = not _libc.mount(os.fsencode(prefix), os.fsencode(place), None, ctypes.c_ulong(_BIND), None)
        yield place / python.relative_to(prefix) if is_mounted else python
    finally:
        _libc.umount2(os.fsencode(place), _DETACH)
        place.rmdir()


def is_reachable(folder: Path) -> bool:
    """Every user may use what is in this folder."""
    return all(part.stat().st_mode & stat.S_IXOTH for part in (folder, *folder.parents))


def join(pid: int) -> None:
    """See the users that process ``pid`` sees, as far as this one may."""
    try:
        mounts = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
    except OSError:
        return
    try:
        _libc.setns(mounts, _NEW_MOUNTS)
    finally:
        os.close(mounts)


def become(uid: int | None) -> None:
    """Be that user from now on; ``None`` stays who we are."""
    if uid is not None:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        # Or /proc would show the process as root's.
        _libc.prctl(_SET_DUMPABLE, 1, 0, 0, 0)


def end_with_parent(parent: int, number: int) -> None:
    """Have the kernel send this process a signal when ``parent`` is gone; after ``become``, which would undo it."""
    _libc.prctl(_SET_DEATH_SIGNAL, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def adopt_orphans() -> None:
    """Become the parent of every process below this one whose own parent ends."""
    _libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def _done(status: int) -> None:
    if status:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
