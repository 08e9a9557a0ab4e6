"""How much GPU memory the runs of a user's scripts took: what is kept, for that user alone, and what follows from it.

One file, ``runs``. Its first line is a random salt; every other line is one run: when it ended, a hash of the job, and
the largest number of bytes that the frameworks counted on one GPU; 0 if it ran out of memory.
"""

from __future__ import annotations

import math
import os
import re
import stat
import sys
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from typing import Mapping, Sequence

from autogpu import uncaught
from autogpu.atomic_file import write_file
from autogpu.devices.model import Device, Inventory
from autogpu.errors import ignoring, raise_if_from_script
from autogpu.frozen import Value
from autogpu.policy.model import Policy
from autogpu.process import is_worker, unix_s
from autogpu.selection.grants import Grant, is_engine_worker
from autogpu.selection.memory import CONTEXT_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.frameworks.model import Framework

# So many clean runs tell what a script needs.
RUNS = 3
_DAYS = 90
# Half of them are left when there are more: the file never has 64 KiB.
_MOST_RUNS = 1000
_MOST_BYTES = 128 << 10
_SAFELY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)

# Of a GPU that a script needs nearly whole, the rest is of no use to others.
_WORTH_SHARING = 0.75


def peak_of(kept: str, job: Sequence[object], ranks: int = 1) -> int:
    """The largest of the last three runs, of ``ranks`` processes each; 0 until there are as many that ended well."""
    newest_first = (int(run.rpartition(" ")[2]) for run in reversed(runs_of(kept, key_of(kept, *job))))
    clean = [*takewhile(bool, newest_first)]
    return max(clean[: RUNS * ranks]) if len(clean) >= RUNS * ranks else 0


def key_of(kept: str, *job: object) -> str:
    """A name for ``job`` from which nothing can be told; ``""`` where nothing is kept."""
    salt = kept.partition("\n")[0]
    return sha256(repr((salt, job)).encode("utf-8", "surrogateescape")).hexdigest()[:16] if salt else ""


def runs_of(kept: str, key: str = "[0-9a-f]{16}", days: float = _DAYS) -> list[str]:
    """The lines of the last ``days``, oldest first."""
    oldest_s = unix_s() - days * 86400
    found = re.findall(rf"^([0-9]{{1,12}})( {key} [0-9]{{1,16}})$", kept, re.MULTILINE)
    return [ended_s + rest for ended_s, rest in found if int(ended_s) >= oldest_s]


class History:
    """The file of this user, in ``folder`` if there is one. Whatever is wrong with it, nothing is known and kept."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        state = Path(environ.get("XDG_STATE_HOME", ""))
        home = Path(environ.get("HOME", ""))
        self._home, folder = (state, state) if state.is_absolute() else (home, home / ".local/state")
        self.folder = folder / "autogpu" if folder.is_absolute() else None

    def read(self) -> str:
        """The file's text, for the functions above; ``""`` where nothing is kept."""
        try:
            return _read(self._file())
        except OSError as error:
            raise_if_from_script(error)
            return ""

    def keep(self, job: Sequence[object], peak_bytes: int) -> None:
        """Add a run to the file, which is made if there is none.

        Raises:
            OSError: That can't be done.
        """
        file = self._file(make=True)
        try:
            kept = _read(file)
        except FileNotFoundError as error:
            raise_if_from_script(error)
            kept = os.urandom(16).hex() + "\n"
            write_file(file, kept.encode(), 0o600)
        # After a line that a full disk has cut.
        begin = "" if kept.endswith("\n") else "\n"
        run = f"{begin}{int(unix_s())} {key_of(kept, *job)} {peak_bytes}\n"
        runs = runs_of(kept)
        # Another process may have written half of its line so far, and what is replaced loses what others append.
        if len(runs) < len(runs_of(kept, days=math.inf)) or kept.count("\n") > _MOST_RUNS:
            left = "".join(line + "\n" for line in runs[-_MOST_RUNS // 2 :])
            write_file(file, (kept[: kept.index("\n") + 1] + left + run).encode(), 0o600)
            return
        descriptor = os.open(str(file), os.O_WRONLY | os.O_APPEND | _SAFELY)
        try:
            os.write(descriptor, run.encode())  # in one piece: others append as well
        finally:
            os.close(descriptor)

    def _file(self, *, make: bool = False) -> Path:
        if self.folder is None or not hasattr(os, "geteuid"):
            raise FileNotFoundError("there is no home folder")
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


class KnownNeed(Value):
    """The need of a script in bytes: the largest need of its last ``runs``, plus a tenth and a CUDA context."""

    runs: int
    bytes: int


class ThisRun:
    """The run that this process is; its script, arguments, policy and GPUs say which others were runs of its job."""

    def __init__(self, policy: Policy, environ: Mapping[str, str], grant: Grant) -> None:
        """Nothing is read yet. The arguments are those of now: a script may change them later."""
        # What a worker of an engine runs is not told by its arguments.
        self._arguments = _script_arguments() if policy.history and not is_engine_worker(environ) else ()
        self._history = History(environ)
        self._policy = policy
        self._ranks = grant.rank.size if grant.rank is not None else 1
        self._job: Sequence[object] = ()
        self._peak_bytes = 0
        self._frameworks: list[Framework] = []
        self._is_limited = False
        self._pid: int | None = None

    def read_last_runs(self, inventory: Inventory | None) -> None:
        """Read once what the last runs of this job took, when the GPUs of the host are known."""
        if inventory is None or not self._arguments or self._job:
            return
        policy = self._policy
        models = sorted({device.name for device in inventory.devices})
        memory = policy.growth, str(policy.limit), policy.limit_includes, policy.virtual_gpus
        # Workers that a program starts do something else than the program.
        self._job = (*self._arguments, *memory, policy.count, self._ranks, is_worker(), *models)
        self._peak_bytes = peak_of(self._history.read(), self._job, self._ranks)

    def need_worth_stating(self, taken: Sequence[Device], *, by_script: bool) -> KnownNeed | None:
        """Return what the last runs needed, if others could share the GPU by it and no size is stated."""
        policy = self._policy
        if by_script or policy.need_bytes is not None or policy.limit is not None or not self._peak_bytes:
            return None
        # A tenth more, because runs differ.
        need_bytes = self._peak_bytes * 11 // 10 + CONTEXT_BYTES
        if need_bytes > _WORTH_SHARING * min((device.memory_total_bytes or 0 for device in taken), default=0):
            return None
        return KnownNeed(RUNS, need_bytes)

    def uses(self, framework: Framework, *, is_limited: bool) -> None:
        """A framework takes GPUs: at the end it will have counted how much. A forked child calls this itself."""
        if not self._job:
            return
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._frameworks = []
            self._is_limited = False
            # Later than those of the framework, so that it runs before them.
            uncaught.at_end(self._at_end)
        self._is_limited |= is_limited
        if framework not in self._frameworks:
            self._frameworks.append(framework)

    def _at_end(self, error: BaseException | None) -> None:
        if self._pid != os.getpid():
            return
        with ignoring(BaseException):  # a full disk, or what a script has broken
            if any(used.out_of_memory(each) for each in uncaught.chain(error) for used in self._frameworks):
                self._history.keep(self._job, 0)
            # An error or Ctrl-C may have come before the memory was needed, and a limit hides what would have been
            # taken.
            elif error is None and not self._is_limited:
                needed = [framework.needed_bytes(growth=self._policy.growth) for framework in self._frameworks]
                if all(needed):
                    self._history.keep(self._job, sum(needed))


def _script_arguments() -> tuple[str, ...]:
    """The file of the running script and its arguments; ``()`` at a prompt, in a notebook, and for ``-c`` and stdin."""
    argv = [str(each) for each in getattr(sys, "argv", None) or ()]
    # A folder may not be entered, and there may be no name at all.
    is_script = bool(argv) and not hasattr(sys, "ps1") and os.path.isfile(argv[0])  # noqa: PTH113  (raises nothing)
    return (os.path.realpath(argv[0]), *argv[1:]) if is_script else ()
