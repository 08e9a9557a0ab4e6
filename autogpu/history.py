"""How much GPU memory the scripts of a user took: kept for that user alone, and what follows for the next run.

One file, ``runs``. Its first line is a random salt; every other line is one run: when it ended, a hash of the job, and
the largest number of bytes that the frameworks counted on one GPU; 0 if it ran out of memory.
"""

from __future__ import annotations

import os
import re
import stat
from itertools import takewhile
from pathlib import Path
from typing import Mapping, Sequence

from autogpu.atomic_file import write_file
from autogpu.process import unix_s
from autogpu.reporting.text import size

# So many clean runs tell what a script needs.
RUNS = 3
_DAYS = 90
# Half of them are left when there are more: the file never has 64 KiB.
_MOST_RUNS = 1000
_MOST_BYTES = 128 << 10
_SAFELY = 0
for _flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC"):
    _SAFELY |= getattr(os, _flag, 0)


def peak_of(peaks: Sequence[int], ranks: int = 1) -> int | None:
    """The largest of the last three runs, of ``ranks`` processes each; ``None`` until there are as many."""
    return max(peaks[: RUNS * ranks]) if len(peaks) >= RUNS * ranks else None


def took_at_most(peak_bytes: int, context_bytes: int) -> str:
    """Tell of the last runs."""
    return f"its last {RUNS} runs took at most {size(peak_bytes + context_bytes)}"


def key_of(kept: str, *job: object) -> str:
    """A name for ``job`` from which nothing can be told; ``""`` where nothing is kept."""
    from hashlib import sha256  # few processes get here

    salt = kept.partition("\n")[0]
    return sha256(repr((salt, job)).encode("utf-8", "surrogateescape")).hexdigest()[:16] if salt else ""


def peaks_of(kept: str, key: str) -> Sequence[int]:
    """The runs of a job since it last ran out of memory, newest first."""
    return [*takewhile(bool, (int(run.rpartition(" ")[2]) for run in reversed(runs_of(kept, re.escape(key)))))]


def runs_of(kept: str, key: str = "[0-9a-f]{16}") -> list[str]:
    """The lines of the last 90 days, oldest first."""
    oldest_s = unix_s() - _DAYS * 86400
    found = re.findall(rf"^([0-9]{{1,12}})( {key} [0-9]{{1,16}})$", kept, re.MULTILINE)
    return [ended_s + rest for ended_s, rest in found if int(ended_s) >= oldest_s]


class History:
    """The file of this user, in ``folder`` if there is one. Whatever is wrong with it, nothing is known and kept."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        base, self._home = Path(environ.get("XDG_STATE_HOME", "")), Path(environ.get("HOME", ""))
        if base.is_absolute():
            self._home = base
        folder = self._home / ("" if base.is_absolute() else ".local/state") / "autogpu"
        self.folder = folder if folder.is_absolute() else None

    def read(self) -> str:
        """The file's text, for the functions above; ``""`` where nothing is kept."""
        try:
            return _read(self._file())
        except OSError:
            return ""

    def keep(self, job: Sequence[object], peak_bytes: int) -> None:
        """Add a run to the file, which is made if there is none.

        Raises:
            OSError: That can't be done.
        """
        file = self._file(make=True)
        try:
            kept = _read(file)
        except FileNotFoundError:
            kept = os.urandom(16).hex() + "\n"
            write_file(file, kept.encode(), 0o600)
        # After a line that a full disk has cut.
        begin = "" if kept.endswith("\n") else "\n"
        run, runs = f"{begin}{int(unix_s())} {key_of(kept, *job)} {peak_bytes}\n", runs_of(kept)
        lines = kept.count("\n") - 1
        if len(runs) < lines or lines >= _MOST_RUNS:
            left = "".join(line + "\n" for line in runs[-_MOST_RUNS // 2 :])
            write_file(file, (kept[: kept.index("\n") + 1] + left + run).encode(), 0o600)
            return
        descriptor = os.open(str(file), os.O_WRONLY | os.O_APPEND | _SAFELY)
        try:
            os.write(descriptor, run.encode())  # in one piece: others append as well
        finally:
            os.close(descriptor)

    def forget(self) -> bool:
        """Remove the file; whether there was one of ours.

        Raises:
            OSError: It can't be removed, or is none of ours.
        """
        try:
            file = self._file()
            _read(file)
        except FileNotFoundError:
            return False
        file.unlink()
        return True

    def _file(self, *, make: bool = False) -> Path:
        if self.folder is None or not hasattr(os, "geteuid"):
            raise FileNotFoundError
        # As with sudo: links in there may lead anywhere.
        if next(each for each in (self._home, *self._home.parents) if each.is_dir()).stat().st_uid != os.geteuid():
            raise PermissionError("the home folder of another user")
        if make:
            self.folder.mkdir(0o700, parents=True, exist_ok=True)
        found = self.folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise PermissionError("a link, or another user's")
        return self.folder / "runs"


def _read(file: Path) -> str:
    descriptor = os.open(str(file), os.O_RDONLY | _SAFELY)
    try:
        found = os.fstat(descriptor)
        is_users = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
        text = os.read(descriptor, _MOST_BYTES).decode("ascii", "replace") if is_users else ""
    finally:
        os.close(descriptor)
    if not re.match("[0-9a-f]{32}\n", text):
        raise PermissionError("none of ours")
    return text
