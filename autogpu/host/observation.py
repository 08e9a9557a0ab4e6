"""Look at a host or an image: what lies in which place, without a judgement."""

from __future__ import annotations

import os
from pathlib import Path

from autogpu.errors import InstallError
from autogpu.host.model import MARKER, Host, Places
from autogpu.lease import Folder, LeaseUnavailable, holders, locks
from autogpu.lease.folder import FALLBACK_FOLDER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.lease import Holder

# Not by PATH: this runs as root, and there PATH may still be a user's.
_PROGRAMS = ("usr/bin/systemd-tmpfiles", "bin/systemd-tmpfiles")

# What shows that an init is running which reads tmpfiles.d at boot. Source: sd_booted(3), and Gentoo's OpenRC.
_INITS = ("run/systemd/system", "run/openrc")


def observe(root: Path = Path("/")) -> Host:
    """Look at everything; changes nothing, and anyone may.

    Raises:
        InstallError: This is not the root of a Linux system.
    """
    if not locks.IS_AVAILABLE:
        raise InstallError("this system has no flock, so GPUs can't be claimed", remedy="use Linux or WSL2")
    places = Places(root.resolve())
    for name in ("run", "etc"):
        if not (places.root / name).is_dir():
            raise InstallError(
                f"{places.root} is not the root of a Linux system: it has no {name} folder",
                remedy=f"without one, jobs coordinate in {FALLBACK_FOLDER}"
                if places.is_host
                else "name the top folder of an image by --root",
            )
    for path in (places.tmpfiles, places.folder, places.policy):
        # An absolute link in the tree of an image means the image's, and would lead to this machine's.
        parent = path.parent.resolve()
        if places.root != parent and places.root not in parent.parents:
            raise InstallError(
                f"{path.parent} leads out of {places.root}, to {parent}", remedy="make it a folder, not a link"
            )
    program = next((path for path in map(places.root.joinpath, _PROGRAMS) if path.is_file()), None)
    runs = not places.is_host or any((places.root / init).is_dir() for init in _INITS)
    return Host(
        places=places,
        euid=os.geteuid(),
        has_tmpfiles=places.tmpfiles.parent.is_dir() or program is not None,
        is_read_at_boot=program is not None and runs,
        program=program if places.is_host else None,
        tmpfiles=_content(places.tmpfiles),
        policy=_content(places.policy),
        folder=_status(places.folder),
        mutex=_status(places.mutex),
        leftovers=tuple(
            left
            for file in (places.tmpfiles, places.policy)
            for left in sorted(file.parent.glob(f".{file.name}.*.tmp"))
        ),
        stranded=_holders(places.fallback),
    )


def _content(path: Path) -> bytes | None:
    try:
        if not os.path.lexists(str(path)):
            return None
        if not path.is_file():
            return b""  # also a link to /dev/null, which is how tmpfiles.d files are masked
        content = path.read_bytes()
        # A link is somebody's arrangement: it may lead to the right content, and yet it is not ours.
        return content.replace(MARKER, b"") if path.is_symlink() else content
    except FileNotFoundError:
        return None
    except OSError:
        return b""


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None


def _holders(path: Path) -> tuple[Holder, ...]:
    status = _status(path)
    if status is None:
        return ()
    try:
        return holders(Folder(path, "fallback", status.st_uid))
    except LeaseUnavailable:
        return ()
