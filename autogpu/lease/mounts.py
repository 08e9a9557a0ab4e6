"""The mounts at the lease folder and on files inside it. Source: ``/proc/self/mountinfo``, proc(5)."""

from __future__ import annotations

import os

from autogpu.errors import raise_if_from_script
from autogpu.frozen import Value
from autogpu.process import read_bytes

_ESCAPES = {"\\": r"\134", " ": r"\040", "\t": r"\011", "\n": r"\012"}


class Mounts(Value):
    """The mounts that concern one folder.

    Attributes:
        file_system: Type of the folder's own file system, such as ``"tmpfs"``; ``""`` if unknown.
        inside: Names of files in the folder on which something is mounted. Any user can mount FUSE on one of their own
            files, and a system call on such a file may never return.
    """

    file_system: str = ""
    inside: frozenset[str] = frozenset()

    @property
    def is_fuse(self) -> bool:
        """True for ``"fuse"``, ``"fuse.sshfs"``, ``"fuseblk"``."""
        return self.file_system.startswith("fuse")


def mounts_of(folder: int) -> Mounts:
    """Return the mounts that concern the folder with this descriptor. Makes no system call on a mounted file."""
    try:
        path = os.readlink(f"/proc/self/fd/{folder}")
        mount_id = _mount_id(folder)
        lines = os.fsdecode(read_bytes("/proc/self/mountinfo")).splitlines()
    except OSError as error:
        raise_if_from_script(error)
        return Mounts()
    prefix = "".join(_ESCAPES.get(character, character) for character in path) + "/"
    file_system = ""
    inside = set()
    for line in lines:
        if prefix in line:
            point = line.split(" ", 5)[4]
            inside.add(point[len(prefix) :] if point.startswith(prefix) else "")
        if line.startswith(mount_id):
            file_system = line.partition(" - ")[2].partition(" ")[0]
    return Mounts(file_system, frozenset(inside))


def _mount_id(descriptor: int) -> str:
    """Return the mount id of an open file, and a blank: the line of its mount in ``mountinfo`` starts with these."""
    for line in read_bytes(f"/proc/self/fdinfo/{descriptor}").decode().splitlines():
        name, _, value = line.partition(":")
        if name == "mnt_id":
            return value.strip() + " "
    return "\0"  # no line starts like this
