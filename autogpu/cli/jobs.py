"""The jobs of this host as a person names them, by pid or script: for ``wait --job`` and ``stop``."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Collection, Iterable, Iterator, Mapping, Sequence, Union

import click

from autogpu.devices.model import Inventory
from autogpu.errors import AutoGpuError, WaitTimeout
from autogpu.lease import Folder, Holder, LeaseSnapshot, Processes, Waiter, processes_of
from autogpu.process import monotonic_s, unix_s
from autogpu.reporting.text import counted, listed, printable, span, user_name
from autogpu.selection import explain
from autogpu.selection.jobs import jobs_of
from autogpu.selection.occupancy import compute_pids
from autogpu.status.snapshot import read_leases

VERSION = 1

Record = Union[Holder, Waiter]

# Of a list in a message.
_MOST_NAMED = 12


@dataclass(frozen=True)
class JobHere:
    """A job that holds GPUs, or waits for some, by the leases and tickets of one user that share a group.

    Attributes:
        pid: As ``status`` shows it.
        pids: Those of its processes that can be told in this pid namespace, holders and waiters first.
        gpus: The labels of its GPUs; empty where the driver was not read.
    """

    records: tuple[Record, ...]
    pid: int | None
    pids: tuple[int, ...]
    age_s: float | None
    gpus: tuple[str, ...] = ()

    @property
    def is_own(self) -> bool:
        """This command is part of it, and may keep its lease alive itself."""
        return os.getpid() in self.pids

    @property
    def uid(self) -> int:
        """Of its user, as the kernel says."""
        return self.records[0].uid

    @property
    def script(self) -> str:
        """The script's name, safe to print."""
        return self.records[0].script or "?"

    @property
    def is_waiting(self) -> bool:
        """It holds nothing yet."""
        return all(isinstance(record, Waiter) for record in self.records)

    @property
    def name(self) -> str:
        """``train.py (pid 4121)``."""
        return f"{self.script} (pid {self.pid or '?'})"

    def values(self) -> Mapping[str, object]:
        """What a program is told of it."""
        user = user_name(self.uid)
        return {"user": user, "uid": self.uid, "pid": self.pid, "script": self.script, "is_waiting": self.is_waiting}

    def described(self) -> str:
        """``train.py (pid 4121) on GPU 2, 3 processes, for 45 min``."""
        where = " waiting for a GPU" if self.is_waiting else ""
        where = f" on {explain.gpu_names(self.gpus)}" if self.gpus else where
        processes = f", {counted(len(self.pids), 'process', 'processes')}" if len(self.pids) > 1 else ""
        return self.name + where + processes + (f", for {span(self.age_s)}" if self.age_s is not None else "")


def read_jobs(names: Iterable[str], inventory: Inventory | None = None) -> tuple[Folder | None, tuple[JobHere, ...]]:
    """The folder of the leases, ``None`` if there is none yet; and the jobs of all users, looked up for ``names``.

    Raises:
        AutoGpuError: The folder can't be trusted or read.
    """
    read = read_leases(os.environ)
    if read.problem:
        raise AutoGpuError(f"the jobs here can't be told: {read.problem}", remedy="`autogpu doctor` looks further")
    asked = {os.getpid(), *(pid for pid in map(pid_of, names) if pid is not None)}
    return read.folder, jobs_here(read.leases, inventory, unix_s(), asked)


def records_of(leases: LeaseSnapshot) -> list[Record]:
    """Its leases, then its tickets."""
    return [*leases.holders, *leases.waiters]


def jobs_here(
    leases: LeaseSnapshot, inventory: Inventory | None, now_s: float, asked: Collection[int] = ()
) -> tuple[JobHere, ...]:
    """All of them, in the order in which they claimed; those that wait come last.

    Args:
        asked: Pids whose jobs are looked for, beside those that the driver lists.
    """
    processes = processes_of(leases.holders, {*asked, *compute_pids(inventory)}, is_complete=True)
    groups: dict[tuple[int, str], list[Record]] = defaultdict(list)
    for record in records_of(leases):
        groups[record.uid, record.group or record.name].append(record)
    return tuple(_job(records, processes, inventory, now_s) for records in groups.values())


def _job(records: Sequence[Record], processes: Processes, inventory: Inventory | None, now_s: float) -> JobHere:
    holders = [record for record in records if isinstance(record, Holder)]
    waiting = [record.pid_here for record in records if isinstance(record, Waiter)]
    pids = [process for holder in holders for process in processes.of(holder)[:1]]
    pids += [pid for pid in waiting if pid is not None]
    pids += [process for holder in holders for process in processes.of(holder)]
    first = next(iter(jobs_of(holders, processes, inventory, now_s)), None)
    claims: Iterable[str] = first.claims if first else ()
    devices = inventory.devices if inventory else ()
    since = [record.since_s for record in records if record.since_s is not None]
    return JobHere(
        records=tuple(records),
        pid=first.pid if first else records[0].pid,
        pids=tuple(dict.fromkeys(pids)),
        age_s=max(0.0, now_s - min(since)) if since else None,
        gpus=tuple(device.label for device in devices if device.uuid in claims),
    )


def uid_of(name: str) -> int:
    """The number of a user of this host, whom an option names."""
    import difflib
    import pwd  # not on Windows

    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        near = difflib.get_close_matches(name, [user.pw_name for user in pwd.getpwall()], n=1)
        hint = f"; did you mean {printable(near[0], 32)}?" if near else ""
        raise click.UsageError(f"there is no user {printable(name, 32)} here{hint}") from None


def pid_of(text: str) -> int | None:
    """The pid that ``text`` is, where it is one."""
    return int(text) if re.fullmatch("[0-9]{1,10}", text) else None


def named(jobs: Sequence[JobHere], text: str) -> list[JobHere]:
    """The jobs that ``text`` means: a pid of one of its processes, or a script's name."""
    pid = pid_of(text)
    if pid is not None:
        here = [job for job in jobs if pid in job.pids]
        # A container's processes count themselves; `status` shows these numbers.
        return here or [job for job in jobs if job.pid == pid and not job.pids]
    return [job for job in jobs if job.script == text.rpartition("/")[2]]


def only_one(found: Sequence[JobHere], all_jobs: Sequence[JobHere], text: str, verb: str, none: str = "") -> JobHere:
    """The one that was found for ``text``, or an error that lists what ``verb`` could be said of."""
    if len(found) == 1:
        return found[0]
    if found:
        what = f"{printable(text, 80)} means {len(found)} jobs: {names_of(found, with_users=True)}"
        raise AutoGpuError(what, remedy=f"say which by its pid, as in `autogpu {verb} {found[0].pid}`")
    if not none:
        none = f"pid {text} is no job" if pid_of(text) is not None else f"no job is called {printable(text, 80)}"
        none += " of autogpu's"
    there_are = f"there are {names_of(all_jobs, with_users=True)}" if all_jobs else "there is none"
    raise AutoGpuError(f"{none}; {there_are}", remedy="`autogpu status` shows all that use a GPU")


def own_job(job: JobHere, remedy: str) -> AutoGpuError:
    """The error to raise where this command would wait for itself, or end itself."""
    return AutoGpuError(f"{job.name} is the job that this command is part of", remedy=remedy)


def names_of(jobs: Sequence[JobHere], *, with_users: bool = False) -> str:
    """What they are called, in a message."""
    names = [job.name + (f" of {user_name(job.uid)}" if with_users else "") for job in jobs[:_MOST_NAMED]]
    return listed([*names, f"{len(jobs) - _MOST_NAMED} more"] if len(jobs) > _MOST_NAMED else names)


class Watch:
    """Tells whether some jobs still live, also where one got its GPU after it was in the queue, or lost a member."""

    def __init__(self, jobs: Iterable[JobHere]) -> None:
        self._keys = {key for job in jobs for record in job.records for key in _keys(record)}

    def alive(self, leases: LeaseSnapshot) -> list[Record]:
        """The leases and tickets of these jobs."""
        found = [record for record in records_of(leases) if not self._keys.isdisjoint(_keys(record))]
        self._keys.update(key for record in found for key in _keys(record))
        return found


def _keys(record: Record) -> Iterable[tuple[object, ...]]:
    yield record.uid, record.group or record.name
    if record.pid is not None:
        yield record.uid, record.pid_namespace, record.pid, record.start_time


@contextmanager
def told_in_json(refused: str, *, as_json: bool) -> Iterator[dict[str, object]]:
    """Print at the end what became of the ``jobs`` that the body sets, and ``why``; of an error, ``refused``."""
    told: dict[str, object] = {"version": VERSION, "verdict": "ended", "jobs": (), "why": ""}
    begun_s = monotonic_s()

    def tell() -> None:
        if as_json:
            click.echo(json.dumps({**told, "waited_s": round(monotonic_s() - begun_s, 1)}, indent=2))

    try:
        yield told
    except AutoGpuError as error:
        told.update(verdict="running" if isinstance(error, WaitTimeout) else refused, why=error.what)
        tell()
        raise
    tell()
