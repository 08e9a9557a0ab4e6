"""What lies on a host, or in the tree of an image, at one moment."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from autogpu.errors import InstallError
from autogpu.host_setup.texts import MARKER
from autogpu.lease import Folder, LeaseUnavailable, locks, snapshot
from autogpu.lease.folder import FALLBACK_FOLDER, HOST_FOLDER, MUTEX
from autogpu.policy.model import SYSTEM_FILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.lease import Holder

_TMPFILES = Path("/etc/tmpfiles.d/autogpu.conf")

# Not by PATH: this runs as root, and there PATH may still be a user's.
_PROGRAMS = ("usr/bin/systemd-tmpfiles", "bin/systemd-tmpfiles")

# Show that an init is running which reads tmpfiles.d at boot. Source: sd_booted(3), and Gentoo's OpenRC.
_INITS = ("run/systemd/system", "run/openrc")


@dataclass(frozen=True)
class HostPaths:
    """Where everything lies below ``root``, which is ``/`` or the tree of an image.

    Attributes:
        tmpfiles: Has the folder made at boot. Source: tmpfiles.d(5).
        folder: Where all users of the host keep their leases, with the mutex in it.
        policy: The system layer of every policy.
        fallback: The lease folder where there is no host folder.
    """

    root: Path
    tmpfiles: Path
    folder: Path
    mutex: Path
    policy: Path
    fallback: Path

    @classmethod
    def below(cls, root: Path) -> HostPaths:
        """The paths in one tree."""
        paths = (_TMPFILES, HOST_FOLDER, HOST_FOLDER / MUTEX, SYSTEM_FILE, FALLBACK_FOLDER)
        return cls(root, *(root / path.relative_to(path.anchor) for path in paths))

    @property
    def is_host(self) -> bool:
        """Whether this is the running system."""
        return self.root == Path(self.root.anchor)


@dataclass(frozen=True)
class Host:
    """What was seen.

    Attributes:
        euid: Who is asking.
        has_tmpfiles: The system has a place for tmpfiles.d files.
        is_read_at_boot: Something makes at boot what those files ask for. Of an image only its programs are known.
        program: The ``systemd-tmpfiles`` to run; ``None`` where there is none, and always for an image.
        tmpfiles: ``None`` if there is no such file, ``b""`` if it can't be read or is no plain file. Without our
            marker if it is a link: an administrator's arrangement, which may lead to the right content.
        policy: In the same way.
        leftovers: Files of a setup that was killed.
        stranded: Who holds leases in the fallback folder.
    """

    paths: HostPaths
    euid: int
    has_tmpfiles: bool
    is_read_at_boot: bool
    program: Path | None
    tmpfiles: bytes | None
    policy: bytes | None
    folder: os.stat_result | None
    mutex: os.stat_result | None
    leftovers: tuple[Path, ...]
    stranded: tuple[Holder, ...]

    @property
    def owners(self) -> tuple[int, ...]:
        """Whose the folder may be: root's, or in an image also its maker's."""
        return (0,) if self.paths.is_host else (0, self.euid)

    @property
    def has_own_tmpfiles(self) -> bool:
        """The administrator wrote the tmpfiles.d file, and may want the folder to be for one group only."""
        return self.tmpfiles is not None and MARKER not in self.tmpfiles

    def command(self, *options: str) -> str:
        """The full command line for a shell: sudo knows neither this environment nor its PATH."""
        words = [sys.executable, "-m", "autogpu", "host-setup", *options]
        if self.paths.is_host or self.euid == 0:
            words.insert(0, "sudo")
        if not self.paths.is_host:
            words += ["--root", str(self.paths.root)]
        return " ".join(shlex.quote(word) for word in words)


def observe(root: Path = Path("/")) -> Host:
    """Look at everything; changes nothing, and needs no root.

    Raises:
        InstallError: This is not the root of a Linux system.
    """
    if not locks.IS_AVAILABLE:
        raise InstallError("this system has no flock, so GPUs can't be claimed", remedy="use Linux or WSL2")
    paths = HostPaths.below(root.resolve())
    _check_root(paths)
    program = next((path for path in map(paths.root.joinpath, _PROGRAMS) if path.is_file()), None)
    has_init = not paths.is_host or any((paths.root / init).is_dir() for init in _INITS)
    return Host(
        paths=paths,
        euid=os.geteuid(),
        has_tmpfiles=paths.tmpfiles.parent.is_dir() or program is not None,
        is_read_at_boot=program is not None and has_init,
        program=program if paths.is_host else None,
        tmpfiles=_content(paths.tmpfiles),
        policy=_content(paths.policy),
        folder=_status(paths.folder),
        mutex=_status(paths.mutex),
        leftovers=tuple(p for file in (paths.tmpfiles, paths.policy) for p in file.parent.glob(f".{file.name}.*.tmp")),
        stranded=_holders(paths.fallback),
    )


def _check_root(paths: HostPaths) -> None:
    for name in ("run", "etc"):
        if not (paths.root / name).is_dir():
            raise InstallError(
                f"{paths.root} is not the root of a Linux system: it has no {name} folder",
                remedy=f"without one, jobs coordinate in {FALLBACK_FOLDER}"
                if paths.is_host
                else "name the top folder of an image by --root",
            )
    for path in (paths.tmpfiles, paths.folder, paths.policy):
        # An absolute link in the tree of an image means the image's, and would lead to this machine's.
        parent = path.parent.resolve()
        if paths.root != parent and paths.root not in parent.parents:
            what = f"{path.parent} leads out of {paths.root}, to {parent}"
            raise InstallError(what, remedy="make it a folder, not a link")


def _content(path: Path) -> bytes | None:
    try:
        if not os.path.lexists(str(path)):
            return None
        if not path.is_file():
            return b""  # also a link to /dev/null, which is how tmpfiles.d files are masked
        content = path.read_bytes()
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
    try:
        return snapshot(Folder(path, "fallback", status.st_uid)).holders if status else ()
    except LeaseUnavailable:
        return ()
