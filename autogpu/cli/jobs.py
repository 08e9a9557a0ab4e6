"""The jobs of this host as a person names them, by pid, script or GPU: for ``wait --job`` and ``stop``."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Iterable, Iterator, Mapping, Sequence

import click

from autogpu import lease
from autogpu.devices.model import Inventory
from autogpu.errors import AutoGpuError
from autogpu.lease import Folder, Waiter
from autogpu.process import monotonic_s, unix_s
from autogpu.reporting.text import counted, listed, printable, span, user_name
from autogpu.selection import explain
from autogpu.selection.jobs import Job, jobs_of
from autogpu.selection.occupancy import compute_pids
from autogpu.status.snapshot import Names, read_leases

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.lease.model import Record

VERSION = 1

# Of a list in a message.
_MOST_NAMED = 12


@dataclass(frozen=True)
class JobHere:
    """A job that holds GPUs, or waits for some, by the leases and tickets of one user that share a group.

    Attributes:
        folder: The leases and tickets are in it.
        gpus: The labels of its GPUs; empty where the driver was not read.
    """

    folder: Folder
    records: tuple[Record, ...]
    job: Job
    gpus: tuple[str, ...]

    @property
    def pids(self) -> tuple[int, ...]:
        """Those of its processes that can be told in this pid namespace."""
        return tuple(dict.fromkeys(self.job.pids_here))

    @property
    def is_own(self) -> bool:
        """This command is part of it, and may keep its lease alive itself."""
        return os.getpid() in self.job.pids_here

    @property
    def is_waiting(self) -> bool:
        """It holds nothing yet."""
        return all(isinstance(record, Waiter) for record in self.records)

    @property
    def name(self) -> str:
        """``train.py (pid 4121)``."""
        return f"{self.job.script or '?'} (pid {self.job.pid or '?'})"

    def values(self) -> Mapping[str, object]:
        """The job in JSON."""
        user = {"user": user_name(self.job.uid), "uid": self.job.uid}
        return {**user, "pid": self.job.pid, "script": self.job.script or "?", "is_waiting": self.is_waiting}

    def described(self) -> str:
        """``train.py (pid 4121) on GPU 2, 3 processes, for 45 min``."""
        where = " waiting for a GPU" if self.is_waiting else ""
        where = f" on {explain.gpu_names(self.gpus)}" if self.gpus else where
        processes = f", {counted(len(self.pids), 'process', 'processes')}" if len(self.pids) > 1 else ""
        age = f", for {span(self.job.age_s)}" if self.job.age_s is not None else ""
        return self.name + where + processes + age + self._kept()

    def _kept(self) -> str:
        """That another process than the one that claimed keeps the lease alive, and would be ended; else ``""``."""
        pids, pid = [record.pid for record in self.records], self.job.pid
        if pid is None or pid not in self.pids or pid in pids:
            return ""
        keeper = f"{Names().process(pid)[1] or 'a program'}, which it started and which keeps its claim"
        return f"; the process that claimed (pid {pids[0]}) has ended, and pid {pid} is {keeper}"


def read_jobs(names: Iterable[str], inventory: Inventory | None = None) -> Sequence[JobHere]:
    """The jobs of all users, in the order in which they claimed; those that wait come last.

    Args:
        names: They will be looked for: a pid among them may be one that the driver does not list.

    Raises:
        AutoGpuError: The folder can't be trusted or read.
    """
    read = read_leases(os.environ)
    if read.problem:
        raise AutoGpuError(f"the jobs here can't be told: {read.problem}", remedy="`autogpu doctor` looks further")
    if read.folder is None:
        return ()
    groups: dict[tuple[int, str], list[Record]] = defaultdict(list)
    records: list[Record] = [*read.leases.holders, *read.leases.waiters]
    for record in records:
        groups[record.uid, record.group or record.name].append(record)
    asked = {os.getpid(), *compute_pids(inventory), *(pid for pid in map(_pid_of, names) if pid is not None)}
    processes = lease.processes_of(records, asked, is_complete=True)
    devices = inventory.devices if inventory else ()
    found = []
    for members in groups.values():
        for job in jobs_of(members, processes, inventory, unix_s()):
            gpus = tuple(device.label for device in devices if device.uuid in job.claims)
            found.append(JobHere(read.folder, tuple(members), job, gpus))
    return found


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


def _pid_of(text: str) -> int | None:
    return int(text) if re.fullmatch("[0-9]{1,10}", text) else None


def named(jobs: Sequence[JobHere], text: str) -> tuple[str, Sequence[JobHere]]:
    """Find the jobs that ``text`` means, a pid of one of its processes or a script's name; and say by which."""
    pid = _pid_of(text)
    if pid is None:
        return f"called {printable(text, 80)}", [job for job in jobs if job.job.script == text.rpartition("/")[2]]
    here = [job for job in jobs if pid in job.pids]
    # A container's processes count themselves; `status` shows these numbers.
    return f"pid {pid}", here or [job for job in jobs if job.job.pid == pid and not job.pids]


def on_gpu(jobs: Sequence[JobHere], number: str) -> tuple[str, Sequence[JobHere]]:
    """Find the jobs that are on that GPU, or on an instance of it; and say so."""
    found = [job for job in jobs if any(number in (label, label.partition(":")[0]) for label in job.gpus)]
    return f"on GPU {printable(number, 20)}", found


def only_one(what: str, means: Sequence[JobHere], jobs: Sequence[JobHere], verb: str) -> JobHere:
    """The one that was found, apart from the job of this command; else an error that lists what there is."""
    others = [job for job in means if not job.is_own]
    if len(others) == 1:
        return others[0]
    if others:
        raise AutoGpuError(
            f"{len(others)} jobs are {what}: {names_of(others, with_users=True)}",
            remedy=f"say which by its pid, as in `autogpu {verb} {others[0].job.pid}`",
        )
    if means:
        why = f"{means[0].name} is the job that this command is part of"
        raise AutoGpuError(why, remedy=f"call `autogpu {verb}` outside of it")
    there_are = f"there are {names_of(jobs, with_users=True)}" if jobs else "there is none"
    raise AutoGpuError(
        f"no job of autogpu's is {what}; {there_are}", remedy="`autogpu status` shows all that use a GPU"
    )


def names_of(jobs: Sequence[JobHere], *, with_users: bool = False) -> str:
    """Their names in a message."""
    names = [job.name + (f" of {user_name(job.job.uid)}" if with_users else "") for job in jobs]
    more = len(names) - _MOST_NAMED
    return listed([*names[:_MOST_NAMED], f"{more} more"] if more > 0 else names)


class Watch:
    """Tells whether some jobs still live, also where one got its GPU after it was in the queue, or lost a member."""

    def __init__(self, jobs: Sequence[JobHere]) -> None:
        self._folder = jobs[0].folder
        self._keys = {key for job in jobs for record in job.records for key in _keys(record)}

    def alive(self) -> list[Record]:
        """The leases and tickets of these jobs."""
        # Twice: who is served leaves the queue and holds, and one look can miss both of its files.
        return self._alive_at_a_look() or self._alive_at_a_look()

    def _alive_at_a_look(self) -> list[Record]:
        leases = lease.snapshot(self._folder)
        records: list[Record] = [*leases.holders, *leases.waiters]
        known = [record for record in records if not self._keys.isdisjoint(_keys(record))]
        # Only beside one that is known: the next run from the same shell, or on the same port, may have its group.
        groups = {(record.uid, record.group) for record in known if record.group}
        found = [record for record in records if record in known or (record.uid, record.group) in groups]
        self._keys.update(key for record in found for key in _keys(record))
        return found


def _keys(record: Record) -> Iterable[tuple[object, ...]]:
    yield record.uid, record.name
    if record.pid is not None:
        yield record.uid, record.pid_namespace, record.pid, record.start_time


@contextmanager
def told_in_json(verdict: str, *, as_json: bool, **told: object) -> Iterator[dict[str, object]]:
    """Print at the end what the body has put into the values, and why an error of ours has ended it."""
    values: dict[str, object] = {"version": VERSION, "verdict": verdict, **told, "why": ""}
    begun_s = monotonic_s()

    def tell() -> None:
        if as_json:
            click.echo(json.dumps({**values, "waited_s": round(monotonic_s() - begun_s, 1)}, indent=2))

    try:
        yield values
    except AutoGpuError as error:
        values["why"] = values["why"] or error.what
        tell()
        raise
    tell()
