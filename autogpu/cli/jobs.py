"""The jobs of this host as a person names them, by pid, script or GPU; and how their end is awaited."""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import contextmanager
from typing import Callable, Iterable, Iterator, Mapping, Sequence

import click

from autogpu import lease
from autogpu.devices.model import Device, Inventory
from autogpu.errors import AutoGpuError, WaitTimeout
from autogpu.lease import Folder, Waiter
from autogpu.lease.model import Holder
from autogpu.process import monotonic_s, unix_s
from autogpu.reporting.stderr import is_terminal, say
from autogpu.reporting.text import counted, listed, printable, span, user_name
from autogpu.selection import explain
from autogpu.selection.jobs import Job, jobs_of
from autogpu.selection.occupancy import compute_pids
from autogpu.status.snapshot import read_leases, user_and_program

# Of a list in a message.
_MOST_NAMED = 12

_LOOK_EVERY_S = 1.0


def name_of(job: Job) -> str:
    """``train.py (pid 4121)``."""
    return f"{job.script or '?'} (pid {job.pid or '?'})"


def names_of(jobs: Sequence[Job], *, with_users: bool = False) -> str:
    names = [name_of(job) + (f" of {user_name(job.uid)}" if with_users else "") for job in jobs]
    more = len(names) - _MOST_NAMED
    return listed([*names[:_MOST_NAMED], f"{more} more"] if more > 0 else names)


def _values_of(job: Job) -> Mapping[str, object]:
    user = {"user": user_name(job.uid), "uid": job.uid}
    return {**user, "pid": job.pid, "script": job.script or "?", "is_waiting": _is_waiting(job)}


def described(job: Job, inventory: Inventory) -> str:
    """``train.py (pid 4121) on GPU 2, 3 processes, for 45 min``; and which other process keeps its lease alive."""
    gpus = _labels(job, inventory)
    where = f" on {explain.gpu_names(gpus)}" if gpus else " waiting for a GPU" if _is_waiting(job) else ""
    processes = f", {counted(len(job.pids_here), 'process', 'processes')}" if len(job.pids_here) > 1 else ""
    pids, pid, kept = [member.pid for member in job.members], job.pid, ""
    if pid in job.pids_here and pid not in pids:
        keeper = f"{user_and_program(pid)[1] or 'a program'}, which it started and which keeps its claim"
        kept = f"; the process that claimed (pid {pids[0]}) has ended, and pid {pid} is {keeper}"
    return f"{name_of(job)}{where}{processes}, for {span(job.age_s)}{kept}"


def _labels(job: Job, inventory: Inventory) -> list[str]:
    return [device.label for device in inventory.devices if device.uuid in job.claims]


def _is_waiting(job: Job) -> bool:
    return all(isinstance(member, Waiter) for member in job.members)


def _is_own(job: Job) -> bool:
    """This command is part of it, and may keep its lease alive itself."""
    return os.getpid() in job.pids_here


def read_jobs(names: Iterable[str], devices: Sequence[Device] = ()) -> Sequence[Job]:
    """The jobs of all users, in the order in which they claimed; those that wait come last.

    Args:
        names: They will be looked for: a pid among them may be one that the driver does not list.

    Raises:
        AutoGpuError: The folder can't be trusted or read.
    """
    read = read_leases(os.environ, devices)
    if read.problem:
        raise AutoGpuError(f"the jobs here can't be told: {read.problem}", remedy="`autogpu doctor` looks further")
    records: list[Holder] = [*read.leases.holders, *read.leases.waiters]
    asked = {os.getpid(), *compute_pids(devices), *(pid for pid in map(_pid_of, names) if pid is not None)}
    return jobs_of(records, lease.processes_of(records, asked, is_complete=True), devices, unix_s())


def _pid_of(text: str) -> int | None:
    return int(text) if re.fullmatch("[0-9]{1,10}", text) else None


def named(jobs: Sequence[Job], text: str) -> tuple[str, Sequence[Job]]:
    """Find the jobs that ``text`` means, a pid of one of its processes or a script's name; and say by which."""
    pid = _pid_of(text)
    if pid is None:
        return f"called {printable(text, 80)}", [job for job in jobs if job.script == text.rpartition("/")[2]]
    here = [job for job in jobs if pid in job.pids_here]
    # A container's processes count themselves; `status` shows these numbers.
    return f"pid {pid}", here or [job for job in jobs if job.pid == pid and not job.pids_here]


def on_gpu(jobs: Sequence[Job], number: str, inventory: Inventory) -> tuple[str, Sequence[Job]]:
    """Find the jobs that are on that GPU, or on an instance of it; and say so. An error if there is no such GPU."""
    there = [device.label for device in inventory.devices] + [str(lost.index) for lost in inventory.unreadable]
    if number not in there:
        raise AutoGpuError(f"there is no GPU {printable(number, 20)} here", remedy="`autogpu status` numbers them")
    found = [job for job in jobs if any(number in (gpu, gpu.partition(":")[0]) for gpu in _labels(job, inventory))]
    return f"on GPU {printable(number, 20)}", found


def only_one(what: str, means: Sequence[Job], jobs: Sequence[Job], verb: str) -> Job:
    """The one that was found, apart from the job of this command; else an error that lists what there is."""
    others = [job for job in means if not _is_own(job)]
    if len(others) == 1:
        return others[0]
    there_are = f"there are {names_of(jobs, with_users=True)}" if jobs else "there is none"
    why, remedy = f"no job of autogpu's is {what}; {there_are}", "`autogpu status` shows all that use a GPU"
    if others:
        why = f"{len(others)} jobs are {what}: {names_of(others, with_users=True)}"
        remedy = f"say which by its pid, as in `autogpu {verb} {others[0].pid}`"
    elif means:
        why = f"{name_of(means[0])} is the job that this command is part of"
        remedy = f"call `autogpu {verb}` outside of it"
    raise AutoGpuError(why, remedy=remedy)


def watch(jobs: Sequence[Job], folder: Folder) -> Callable[[], list[Holder]]:
    """A function that finds which leases and tickets of these jobs are alive, also where a job got its GPU after it was
    in the queue, or lost a member.
    """
    keys = {key for job in jobs for record in job.members for key in _keys(record)}

    def look() -> list[Holder]:
        leases = lease.snapshot(folder)
        records: list[Holder] = [*leases.holders, *leases.waiters]
        known = [record for record in records if not keys.isdisjoint(_keys(record))]
        # Only beside one that is known: the next run from the same shell, or on the same port, may have its group.
        groups = {(record.uid, record.group) for record in known if record.group}
        found = [record for record in records if record in known or (record.uid, record.group) in groups]
        keys.update(key for record in found for key in _keys(record))
        return found

    # Twice: who is served leaves the queue and holds, and one look can miss both of its files.
    return lambda: look() or look()


def _keys(record: Holder) -> Iterable[tuple[object, ...]]:
    yield record.uid, record.name
    if record.pid is not None:
        yield record.uid, record.pid_namespace, record.pid, record.start_time


@contextmanager
def told_in_json(verdict: str, *, as_json: bool, **told: object) -> Iterator[dict[str, object]]:
    """Print the values at the end, as the body has changed them, and why an error of ours has ended it."""
    values: dict[str, object] = {"version": 1, "verdict": verdict, **told, "why": ""}
    begun_s = monotonic_s()
    try:
        yield values
    except AutoGpuError as error:
        values["why"] = values["why"] or error.what
        raise
    finally:
        if as_json:
            values["waited_s"] = round(monotonic_s() - begun_s, 1)
            click.echo(json.dumps(values, indent=2, default=_values_of))


def wait_for_jobs(names: Sequence[str], within_s: float, *, as_json: bool) -> int:
    """Wait for the end of the jobs of these names, which the locks of their leases tell; without any, of all jobs of
    this user.
    """
    until_s = monotonic_s() + within_s
    with told_in_json("no_such_job", as_json=as_json, jobs=()) as told:
        jobs = left = _jobs_to_wait_for(names)
        told.update(verdict="running", jobs=jobs)
        if jobs and is_terminal():
            say(f"waiting for the end of {names_of(jobs)}; Ctrl-C stops")
        while left:
            if not _end_before(until_s, left):
                still = f"{names_of(left)} {'still runs' if len(left) == 1 else 'have not all ended'}"
                remedy = "to wait longer: --timeout 1h; `autogpu status` shows them"
                raise WaitTimeout(f"{still} after {span(within_s)}", remedy=remedy)
            # Others of this user may have come meanwhile. Twice: who is served leaves the queue and holds.
            left = () if names else _jobs_to_wait_for(()) or _jobs_to_wait_for(())
        ended = f"{names_of(jobs)} {'has' if len(jobs) == 1 else 'have'} ended"
        why = ended if jobs else "you have no other job here that holds a GPU or waits for one"
        told.update(verdict="ended", why=why)
    say(why)
    return 0


def _jobs_to_wait_for(names: Sequence[str]) -> Sequence[Job]:
    jobs = read_jobs(names)
    others = [job for job in jobs if not _is_own(job)]
    if names:
        return [_job_named(jobs, name, others) for name in names]
    return [job for job in others if job.uid == os.getuid()]


def _job_named(jobs: Sequence[Job], name: str, others: Sequence[Job]) -> Job:
    what, means = named(jobs, name)
    # Everybody's script may be called train.py.
    mine = [job for job in means if job.uid == os.getuid()]
    return only_one(what, mine or means, others, "wait --job")


def _end_before(until_s: float, jobs: Sequence[Job]) -> bool:
    folder = lease.find_folder(os.environ, make=False)
    alive = watch(jobs, folder)
    while True:
        left = alive()
        if not left or monotonic_s() >= until_s:
            return not left
        time.sleep(min(_LOOK_EVERY_S, until_s - monotonic_s()))
