"""The history of a user's runs: how much GPU memory each took, and how much the next run needs.

The file ``runs`` is for that user alone. The first line is a random salt. Every other line is one run on one GPU model:
the Unix time of its end, a hash of the job and the model, ``succeeded`` or ``failed``, and the two sizes of
:class:`Run` in bytes.

The file ``lines`` beside it has what autogpu printed about the user's jobs; see :class:`JobLines`.
"""

from __future__ import annotations

import math
import os
import re
import stat
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from typing import Mapping, Sequence

from autogpu import uncaught
from autogpu.atomic_file import new_file, write_file
from autogpu.caps import CONTEXT_BYTES
from autogpu.devices.model import Device
from autogpu.engines.model import Grant, is_engine_worker
from autogpu.errors import ignoring, raise_if_from_script
from autogpu.frozen import Value, replace
from autogpu.policy.model import Policy
from autogpu.process import is_worker, script_file, unix_s
from autogpu.selection.model import LastRuns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.frameworks.model import Framework

# How many successful runs it takes to suggest a need.
RUNS = 3
_DAYS = 90
# With more runs than this only the newer half is kept, so the file stays below 80 KiB.
_MOST_RUNS = 1000
_MOST_BYTES = 128 << 10
_SAFELY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)

_SUCCEEDED, _FAILED = "succeeded", "failed"

# A need above this fraction of a GPU is not suggested, because other jobs could not use the rest.
_WORTH_SHARING = 0.75

# If the file of lines is longer, the newer half is kept.
_MOST_LINES_BYTES = 64 << 10
_LEASE_NAME = "job[.][0-9]{1,10}[.][0-9]{1,10}[.][0-9a-f]{8}"


class Run(Value):
    """One run of a script on GPUs of one model.

    Attributes:
        used_bytes: The most memory that the run used on one GPU, with the CUDA context; 0 if unknown. For a failed run
            this includes its last request.
        needed_bytes: The memory that its frameworks need on a GPU, without the CUDA context; 0 if unknown due to a cap.
        has_failed: True if the run ran out of memory.
    """

    used_bytes: int
    needed_bytes: int = 0
    has_failed: bool = False


def last_runs_of(runs: Sequence[Run], script: str) -> LastRuns | None:
    """Return the most memory that the last three successful runs, or failed runs since, took; ``None`` if unknown.

    Args:
        runs: Oldest first.
    """
    failed = list(takewhile(lambda run: run.has_failed, reversed(runs)))
    successful = [run for run in runs if not run.has_failed][-RUNS:]
    most = max((*failed, *successful), key=lambda run: run.used_bytes, default=None)
    return LastRuns(script, most.used_bytes, most.has_failed) if most and most.used_bytes else None


def need_of(runs: Sequence[Run], ranks: int = 1) -> int:
    """Return the largest need of the last three successful runs; 0 if fewer are known since the last failed run.

    Args:
        runs: Oldest first. A run of several ranks has one entry for each rank.
    """
    since_failure = takewhile(lambda run: not run.has_failed, reversed(runs))
    known = [run.needed_bytes for run in since_failure if run.needed_bytes]
    return max(known[: RUNS * ranks]) if len(known) >= RUNS * ranks else 0


def key_of(kept: str, *job: object) -> str:
    """Return the salted hash of ``job``; ``""`` if ``kept`` has no salt, because nothing is kept."""
    salt = kept.partition("\n")[0]
    return sha256(repr((salt, job)).encode("utf-8", "surrogateescape")).hexdigest()[:16] if salt else ""


def runs_of(kept: str, key: str) -> list[Run]:
    """Return the runs of one job, oldest first."""
    found = (line.split() for line in _lines(kept, key))
    return [Run(int(used), int(needed), ended == _FAILED) for _, _, ended, used, needed in found]


def _lines(kept: str, key: str = "[0-9a-f]{16}", days: float = _DAYS) -> list[str]:
    """Return the well-formed lines of the last ``days``, oldest first."""
    oldest_s = unix_s() - days * 86400
    pattern = rf"^[0-9]{{1,12}} {key} (?:{_SUCCEEDED}|{_FAILED}) [0-9]{{1,16}} [0-9]{{1,16}}$"
    return [line for line in re.findall(pattern, kept, re.MULTILINE) if int(line.partition(" ")[0]) >= oldest_s]


class History:
    """The history file of this user in ``folder``, which is ``None`` if there is no home folder.

    A file that another user could have written is unsafe, and is not used.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        state = Path(environ.get("XDG_STATE_HOME", ""))
        home = Path(environ.get("HOME", ""))
        self._home, folder = (state, state) if state.is_absolute() else (home, home / ".local/state")
        self.folder = folder / "autogpu" if folder.is_absolute() else None

    def read(self) -> str:
        """Return the text of the file, for the functions above; ``""`` if the file is missing or unsafe."""
        try:
            return _read(self.file("runs"))
        except OSError as error:
            raise_if_from_script(error)
            return ""

    def keep(self, job: Sequence[object], run: Run) -> None:
        """Append a run to the file. Make the file if it is missing.

        Raises:
            OSError: The file can't be written, or is unsafe.
        """
        file = self.file("runs", make=True)
        try:
            kept = _read(file)
        except FileNotFoundError as error:
            raise_if_from_script(error)
            _make(file)
            kept = _read(file)
        # A full disk may have cut the last line.
        begin = "" if kept.endswith("\n") else "\n"
        ended = _FAILED if run.has_failed else _SUCCEEDED
        line = f"{begin}{int(unix_s())} {key_of(kept, *job)} {ended} {run.used_bytes} {run.needed_bytes}\n"
        lines = _lines(kept)
        # Make a new file only if necessary: it loses the lines that other processes append to the old one meanwhile.
        if len(lines) < len(_lines(kept, days=math.inf)) or kept.count("\n") > _MOST_RUNS or len(kept) >= _MOST_BYTES:
            left = "".join(line + "\n" for line in lines[-_MOST_RUNS // 2 :])
            write_file(file, (kept[: kept.index("\n") + 1] + left + line).encode(), 0o600)
            return
        _append(file, line.encode())

    def file(self, name: str, *, make: bool = False) -> Path:
        """Return a file of the folder.

        Args:
            make: True to make the folder if there is none.

        Raises:
            OSError: There is no folder, or another user could have made it.
        """
        if self.folder is None or not hasattr(os, "geteuid"):
            raise FileNotFoundError("there is no home folder")
        # With sudo, HOME may be the folder of another user, whose links may lead anywhere.
        if next(each for each in (self._home, *self._home.parents) if each.is_dir()).stat().st_uid != os.geteuid():
            raise PermissionError("the home folder belongs to another user")
        if make:
            self.folder.mkdir(0o700, parents=True, exist_ok=True)
        found = self.folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise PermissionError("the folder is a link or belongs to another user")
        return self.folder / name


def _make(file: Path) -> None:
    salt = os.urandom(16).hex().encode() + b"\n"
    try:
        new_file(file, salt, 0o600)
    except FileExistsError as error:
        raise_if_from_script(error)
    except OSError as error:
        raise_if_from_script(error)
        write_file(file, salt, 0o600)  # the file system may have no hard links


def _read(file: Path) -> str:
    text = _read_own(file, _MOST_BYTES).decode("ascii", "replace")
    if not re.match("[0-9a-f]{32}\n", text):
        raise PermissionError("the file does not begin with a salt")
    return text


def _append(file: Path, data: bytes, make: int = 0) -> None:
    descriptor = os.open(str(file), os.O_WRONLY | os.O_APPEND | make | _SAFELY, 0o600)
    try:
        os.write(descriptor, data)  # in one call, because other processes append as well
    finally:
        os.close(descriptor)


def _read_own(file: Path, most_bytes: int) -> bytes:
    """Return the first ``most_bytes`` of a regular file.

    Raises:
        OSError: The file can't be read, or does not belong to this user.
    """
    descriptor = os.open(str(file), os.O_RDONLY | _SAFELY)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise PermissionError("the file is not a regular file of this user")
        return os.read(descriptor, most_bytes)
    finally:
        os.close(descriptor)


class JobLines:
    """The lines that autogpu printed about this user's jobs, so that ``autogpu status`` can show them.

    They are in the file ``lines`` in the folder of the history. Each entry is the name of a lease, and one line about
    that lease's job.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._history = History(environ)

    def keep(self, lease_name: str, lines: Sequence[str]) -> None:
        """Add the lines about a job.

        Raises:
            OSError: The file can't be written, or another user could have made it.
        """
        file = self._history.file("lines", make=True)
        added = "".join(f"{lease_name} {line}\n" for line in lines).encode("utf-8", "backslashreplace")
        if file.exists() and file.stat().st_size + len(added) > _MOST_LINES_BYTES:
            kept = _read_own(file, _MOST_LINES_BYTES)
            newer_half = kept[len(kept) // 2 :].partition(b"\n")[2]
            write_file(file, newer_half + added, 0o600)
            return
        _append(file, added, os.O_CREAT)

    def read(self) -> Mapping[str, tuple[str, ...]]:
        """Return the lines, keyed by lease name; nothing if there is no file that this user alone can write."""
        try:
            text = _read_own(self._history.file("lines"), _MOST_LINES_BYTES).decode("utf-8", "replace")
        except OSError as error:
            raise_if_from_script(error)
            return {}
        lines: dict[str, tuple[str, ...]] = {}
        for name, line in re.findall(rf"^({_LEASE_NAME}) (.+)$", text, re.MULTILINE):
            lines[name] = (*lines.get(name, ()), line)
        return lines


class KnownNeed(Value):
    """The need of a script in bytes: the largest need of its last ``runs``, plus a tenth and a CUDA context."""

    runs: int
    bytes: int


class _Use(Value):
    """The use of GPUs by a process.

    Attributes:
        frameworks: The frameworks that use GPUs, in the order of their first use.
        devices: The GPUs of the last of them.
        is_limited: True if a cap or the script limits the memory of one of them.
    """

    pid: int
    frameworks: tuple[Framework, ...] = ()
    devices: Sequence[Device] = ()
    is_limited: bool = False


class ThisRun:
    """The run of this process. Runs with the same script, number of ranks and GPU model belong to the same job."""

    def __init__(self, policy: Policy, environ: Mapping[str, str], grant: Grant, *, is_launched: bool = False) -> None:
        """Read ``sys.argv`` now, because the script may change it later. Read nothing else.

        Args:
            is_launched: True if a launcher has started this process.
        """
        # The arguments of an engine's worker do not name the program that it runs.
        self._script = script_file() if policy.history and not is_engine_worker(environ) else ""
        self._history = History(environ)
        self._policy = policy
        self._grant = grant
        self._is_launched = is_launched
        self._kept: str | None = None
        self._use: _Use | None = None

    @property
    def teaches_next(self) -> bool:
        """True if the next run of the script takes into account how much memory this one took.

        False for a rank or a worker, because these start together, and for a job whose GPUs an engine chose.
        """
        starts_with_others = self._is_launched or self._grant.rank is not None or is_worker()
        return bool(self._script) and not starts_with_others and not self._grant.engine

    def last_runs(self, devices: Sequence[Device]) -> Mapping[str, LastRuns]:
        """Return how much memory the last runs of the script took, keyed by GPU model."""
        if not self.teaches_next:
            return {}
        name = os.path.basename(self._script)  # noqa: PTH119  (faster)
        found = {}
        for device in devices:
            runs = last_runs_of(self._runs_on(device.name), name)
            # If the runs took more memory than the GPU has, the file is damaged.
            if runs is not None and runs.bytes <= (device.memory_total_bytes or 0):
                found[device.name] = runs
        return found

    def need_worth_stating(self, taken: Sequence[Device], *, by_script: bool) -> KnownNeed | None:
        """Return the need of the last runs, if no need is stated yet and stating it would let others share the GPU."""
        policy = self._policy
        if by_script or policy.need_bytes is not None or policy.limit is not None or not self._script:
            return None
        needs = [need_of(self._runs_on(device.name), self._ranks) for device in taken]
        if not all(needs):
            return None
        # A tenth more, because runs differ.
        need_bytes = max(needs, default=0) * 11 // 10 + CONTEXT_BYTES
        if need_bytes > _WORTH_SHARING * min((device.memory_total_bytes or 0 for device in taken), default=0):
            return None
        return KnownNeed(RUNS, need_bytes)

    @property
    def _ranks(self) -> int:
        return self._grant.rank.size if self._grant.rank is not None else 1

    def _job_on(self, model: str) -> Sequence[object]:
        # A worker of a program does not compute the same as the program, so it is a job of its own.
        return self._script, self._ranks, is_worker(), model

    def _runs_on(self, model: str) -> list[Run]:
        if self._kept is None:
            self._kept = self._history.read()
        return runs_of(self._kept, key_of(self._kept, *self._job_on(model)))

    def uses(self, framework: Framework, devices: Sequence[Device], *, is_limited: bool) -> None:
        """Record that ``framework`` uses ``devices``, for the history at the end. A forked child calls this as well."""
        if not self._script:
            return
        before = self._use
        if before is None or before.pid != os.getpid():
            before = _Use(os.getpid())
            # This runs before the exit functions of the framework, which were registered earlier.
            uncaught.at_end(self._at_end)
        # A dict keeps the order of the frameworks.
        frameworks = tuple(dict.fromkeys((*before.frameworks, framework)))
        self._use = _Use(os.getpid(), frameworks, devices, before.is_limited or is_limited)

    def _at_end(self, error: BaseException | None) -> None:
        use = self._use
        if use is None or use.pid != os.getpid():
            return
        with ignoring(BaseException):  # the disk may be full, or the script may have broken something
            run = self._run_that_ended(use, error)
            if run is not None:
                # Write one line for each GPU model.
                for device in {device.name: device for device in use.devices}.values():
                    self._history.keep(self._job_on(device.name), _run_on(device, run))

    def _run_that_ended(self, use: _Use, error: BaseException | None) -> Run | None:
        peaks = {framework: framework.peak_bytes() for framework in use.frameworks}
        causes = list(uncaught.chain(error))
        for framework in use.frameworks:
            for failure in filter(None, map(framework.out_of_memory, causes)):
                requested = sum({**peaks, framework: framework.bytes_to_go_on(failure)}.values())
                return Run(requested and requested + CONTEXT_BYTES, has_failed=True)
        needs = [framework.needed_bytes(growth=self._policy.growth) for framework in use.frameworks]
        # A run that was ended by Ctrl-C or by another error may not have used all the memory that it needs.
        if error is not None or not all(needs):
            return None
        # With a cap the need is unknown: without it the framework might have reserved more.
        return Run(sum(peaks.values()) + CONTEXT_BYTES, 0 if use.is_limited else sum(needs))


def _run_on(device: Device, run: Run) -> Run:
    if run.used_bytes <= (device.memory_total_bytes or run.used_bytes):
        return run
    # A script that failed with a larger request can't run on this GPU until the user changes the script. The changed
    # script needs another size.
    return replace(run, used_bytes=0 if run.has_failed else device.memory_total_bytes)
