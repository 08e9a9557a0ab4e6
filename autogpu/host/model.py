"""What lies on a host, what host-setup makes of it, and what it would do."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from autogpu.lease.folder import FALLBACK_FOLDER, HOST_FOLDER, MUTEX
from autogpu.policy.model import SYSTEM_FILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from autogpu.lease import Holder

MARKER = b"autogpu host file"
TMPFILES = Path("/etc/tmpfiles.d/autogpu.conf")

FOLDER_MODE = 0o1777
MUTEX_MODE = 0o444


@dataclass(frozen=True)
class Places:
    """Where everything lies below ``root``, which is ``/`` or the tree of an image."""

    root: Path

    @property
    def is_host(self) -> bool:
        """Whether this is the running system."""
        return self.root == Path(self.root.anchor)

    @property
    def tmpfiles(self) -> Path:
        """Says that the folder is made at boot."""
        return self._below(TMPFILES)

    @property
    def folder(self) -> Path:
        """Where all users of the host keep their leases."""
        return self._below(HOST_FOLDER)

    @property
    def mutex(self) -> Path:
        """In the folder."""
        return self.folder / MUTEX

    @property
    def policy(self) -> Path:
        """The system layer of every policy."""
        return self._below(SYSTEM_FILE)

    @property
    def fallback(self) -> Path:
        """What is used where there is no host folder."""
        return self._below(FALLBACK_FOLDER)

    def _below(self, path: Path) -> Path:
        return self.root / path.relative_to(path.anchor)


@dataclass(frozen=True)
class Host:
    """What lies in the places at one moment.

    Attributes:
        euid: Who is asking.
        has_tmpfiles: The system has a place for tmpfiles.d files.
        is_read_at_boot: Something makes at boot what those files ask for. Of an image only its programs are
            known.
        program: The ``systemd-tmpfiles`` to run; ``None`` where there is none, and always for an image.
        tmpfiles: ``None`` if there is no such file, ``b""`` if it can't be read or is no plain file. Without
            our marker if it is a link.
        policy: In the same way.
        leftovers: Files of a setup that was killed.
        stranded: Who holds leases in the fallback folder.
    """

    places: Places
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
        return (0,) if self.places.is_host else (0, self.euid)

    @property
    def has_own_tmpfiles(self) -> bool:
        """The administrator wrote the tmpfiles.d file, and may want the folder to be for one group alone."""
        return self.tmpfiles is not None and MARKER not in self.tmpfiles

    def command(self, *options: str) -> str:
        """The full command line for a shell: sudo knows neither this environment nor its PATH."""
        words = [sys.executable, "-m", "autogpu", "host-setup", *options]
        if self.places.is_host or self.euid == 0:
            words.insert(0, "sudo")
        if not self.places.is_host:
            words += ["--root", str(self.places.root)]
        return " ".join(shlex.quote(word) for word in words)


@dataclass(frozen=True)
class Part:
    """One thing that host-setup cares for, as it was found.

    Attributes:
        problem: What is not as it should be, to follow the path in a sentence; ``""`` if it is in place.
        consequence: What does not work for that reason, or what to do about it, as sentences.
        is_required: Counts when asked whether all is in place.
    """

    name: Literal["boot", "folder", "mutex", "policy"]
    path: Path
    problem: str
    consequence: str
    is_required: bool

    @property
    def is_in_place(self) -> bool:
        """Whether there is nothing to do."""
        return not self.problem


@dataclass(frozen=True)
class Step:
    """One thing to do, or, in an undo, one not to do and why.

    Attributes:
        content: Of a file to write.
        why: To follow the path in a sentence, for what is left.
    """

    action: Literal["write", "make", "repair", "remove", "leave"]
    path: Path
    content: bytes = b""
    why: str = ""
