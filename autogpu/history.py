"""How much GPU memory the scripts of a user took: kept for that user alone, and what follows for the next run.

One file, ``runs``. Its first line is a random salt; every other line is one run: when it ended, hashes of the job and
of the script's name, and the largest number of bytes that the frameworks counted on one GPU; 0 if it ran out of memory.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

from autogpu.frozen import frozen
from autogpu.process import unix_s
from autogpu.reporting.text import GIB, size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, Mapping, Sequence

# So many clean runs tell what a script needs.
RUNS = 3
_DAYS = 90
# A thousand runs; half of them are left when there are more.
_LARGEST_BYTES = 64 << 10
_FILE = "runs"
_SALT_BYTES = 16
_RUN = re.compile(r"([0-9]{1,12}) ([0-9a-f]{16}) ([0-9a-f]{16}) ([0-9]{1,16})")
_FOLDER_MODE, _FILE_MODE = 0o700, 0o600


@frozen
class Run:
    """One line of the file.

    Attributes:
        peak_bytes: 0 if it ran out of memory.
    """

    ended_s: int
    job: str
    name: str
    peak_bytes: int


def peak_of(peaks: Sequence[int], ranks: int = 1) -> int | None:
    """The largest of the last three runs, of ``ranks`` processes each; ``None`` until there are as many.

    What was before a run that ran out of memory says nothing any more.
    """
    known = since_out_of_memory(peaks)
    return max(known[-RUNS * ranks :]) if len(known) >= RUNS * ranks else None


def since_out_of_memory(peaks: Sequence[int]) -> Sequence[int]:
    """Those that still count."""
    failures = [number for number, peak in enumerate(peaks) if not peak]
    return peaks[failures[-1] + 1 :] if failures else peaks


def need_of(peak_bytes: int, context_bytes: int) -> int:
    """What a script needs that took so much at most: a tenth more, and the CUDA context."""
    return peak_bytes * 11 // 10 + context_bytes


def took_at_most(peak_bytes: int, context_bytes: int) -> str:
    """What is told of the last runs."""
    return f"its last {RUNS} runs took at most {size(peak_bytes + context_bytes)}"


def advice(peak_bytes: int, context_bytes: int) -> str:
    """How to let others have what a script does not need."""
    gib = -(-need_of(peak_bytes, context_bytes) // GIB)
    return f"{took_at_most(peak_bytes, context_bytes)}: AUTOGPU_NEED={gib}GiB lets others share this GPU"


def learned(runs: int, need_bytes: int | None) -> str:
    """Where the need of a process comes from; ``runs`` are those that count so far."""
    if need_bytes is None:
        return f"select.need is learned from {RUNS} runs, of which there {'is' if runs == 1 else 'are'} {runs}"
    return f"claims {size(need_bytes)}, learned from {RUNS} runs"


def hashed(salt: str, *parts: object) -> str:
    """A name for ``parts`` from which they can't be told."""
    from hashlib import sha256  # few processes get here

    return sha256(repr((salt, parts)).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def script_arguments() -> tuple[str, ...]:
    """The file of the running script and its arguments; ``()`` at a prompt, in a notebook, and for ``-c`` and stdin."""
    argv = [str(each) for each in getattr(sys, "argv", None) or ()]
    try:
        is_script = bool(argv) and not hasattr(sys, "ps1") and Path(argv[0]).is_file()
    except (OSError, ValueError):  # a folder that may not be entered, or no name at all
        is_script = False
    return (os.path.realpath(argv[0]), *argv[1:]) if is_script else ()


class History:
    """The file of this user. Whatever is wrong with it, nothing is known and nothing is kept.

    Attributes:
        folder: Where it is; ``None`` where no place is known.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Nothing is read yet."""
        base, home = Path(environ.get("XDG_STATE_HOME", "")), Path(environ.get("HOME", ""))
        if not base.is_absolute():
            base = home / ".local" / "state"
        self.folder = base / "autogpu" if base.is_absolute() else None

    def read(self) -> tuple[Run, ...]:
        """The runs of the last 90 days, oldest first."""
        return _runs(self._content())

    def peaks(self, *job: object) -> tuple[int, ...]:
        """Of the runs of a job, oldest first; or of all jobs of a script, where only its name is given."""
        content = self._content()
        if not content:
            return ()
        name = hashed(_salt(content), *job)
        runs = _runs("\n".join(line for line in content.split("\n") if name in line))
        return tuple(run.peak_bytes for run in runs if name in (run.job, run.name))

    def _content(self) -> str:
        try:
            with self._opened() as folder:
                content = _content(folder)
        except (OSError, ValueError):
            return ""
        return content if _salt(content) else ""

    def keep(self, job: Sequence[object], name: str, peak_bytes: int) -> None:
        """Add a run to the file, which is made if there is none.

        Raises:
            OSError: That can't be done.
        """
        with self._opened(make=True) as folder:
            try:
                content = _content(folder)
            except FileNotFoundError:
                content = os.urandom(_SALT_BYTES).hex() + "\n"
                _replace(folder, content)
            salt = _salt(content)
            if not salt:
                return  # it is none of ours
            line = _line(Run(int(unix_s()), hashed(salt, *job), hashed(salt, name), peak_bytes))
            # The first is the oldest; all are read only where some have to go.
            oldest = content[len(salt) + 1 :].partition("\n")[0]
            if len(content) + len(line) > _LARGEST_BYTES or (oldest and not _runs(oldest)):
                runs = _runs(content)
                fewer = runs[-(_LARGEST_BYTES // (2 * len(line))) :]
                _replace(folder, "".join([f"{salt}\n", *map(_line, fewer), line]))
                return
            descriptor = os.open(_FILE, os.O_WRONLY | os.O_APPEND | _SAFELY, dir_fd=folder)
            try:
                os.write(descriptor, line.encode())  # in one piece: others append as well
            finally:
                os.close(descriptor)

    def forget(self) -> bool:
        """Remove the file; whether there was one of ours.

        Raises:
            OSError: It can't be removed.
        """
        try:
            with self._opened() as folder:
                if not _salt(_content(folder)):
                    return False  # it is none of ours
                os.unlink(_FILE, dir_fd=folder)
        except FileNotFoundError:
            return False
        return True

    @contextmanager
    def _opened(self, *, make: bool = False) -> Iterator[int]:
        if self.folder is None or not hasattr(os, "geteuid"):
            raise FileNotFoundError
        if make and not self.folder.is_dir():
            above = next(each for each in self.folder.parents if each.is_dir())
            if above.stat().st_uid != os.geteuid():
                raise PermissionError("the home folder of another user, as with sudo")
            self.folder.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)
        descriptor = os.open(str(self.folder), os.O_RDONLY | os.O_DIRECTORY | _SAFELY)
        try:
            found = os.fstat(descriptor)
            if found.st_uid != os.geteuid():
                raise PermissionError("the folder of another user")
            if make and stat.S_IMODE(found.st_mode) & 0o077:
                os.fchmod(descriptor, _FOLDER_MODE)
            yield descriptor
        finally:
            os.close(descriptor)


_SAFELY = 0
for _flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC"):
    _SAFELY |= getattr(os, _flag, 0)


def _content(folder: int) -> str:
    descriptor = os.open(_FILE, os.O_RDONLY | _SAFELY, dir_fd=folder)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise PermissionError("not a file of this user")
        return os.read(descriptor, 2 * _LARGEST_BYTES).decode("ascii", "replace")
    finally:
        os.close(descriptor)


def _salt(content: str) -> str:
    """The salt; ``""`` if the file is none of ours."""
    found = re.match(f"[0-9a-f]{{{2 * _SALT_BYTES}}}(?=\n)", content)
    return found.group() if found else ""


def _runs(content: str) -> tuple[Run, ...]:
    found = [match for match in map(_RUN.fullmatch, content.split("\n")) if match]
    runs = [Run(int(m.group(1)), m.group(2), m.group(3), int(m.group(4))) for m in found]
    oldest_s = unix_s() - _DAYS * 86400
    return tuple(run for run in runs if run.ended_s >= oldest_s)


def _line(run: Run) -> str:
    return f"{run.ended_s} {run.job} {run.name} {run.peak_bytes}\n"


def _replace(folder: int, content: str) -> None:
    temporary = f".{_FILE}.{os.getpid()}"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFELY, _FILE_MODE, dir_fd=folder)
        try:
            written = os.write(descriptor, content.encode())
        finally:
            os.close(descriptor)
        if written < len(content):
            raise OSError("the disk is full")
        os.replace(temporary, _FILE, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise
