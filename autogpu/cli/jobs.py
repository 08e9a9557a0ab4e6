"""The jobs of this host as a person names them, by pid, script or GPU; and how their end is awaited."""

from __future__ import annotations

import os
import re
import time
from functools import partial
from typing import Callable, Iterable, Iterator, Sequence

from autogpu import lease
from autogpu.devices.model import Device, Inventory
from autogpu.errors import AutoGpuError, WaitTimeout
from autogpu.lease import Waiter
from autogpu.lease.model import Holder
from autogpu.process import monotonic_s, unix_s
from autogpu.selection import explain
from autogpu.selection.jobs import Job, compute_pids, jobs_of
from autogpu.status.snapshot import read_leases
from autogpu.stderr import is_terminal, say
from autogpu.text import counted, listed, printable, span
from autogpu.users import user_name

_LOOK_EVERY_S = 1.0


def name_of(job: Job) -> str:
    """``train.py (pid 4121)``."""
    return f"{job.script or '?'} (pid {job.pid or '?'})"


def names_of(jobs: Sequence[Job], *, with_users: bool = False) -> str:
    return listed([name_of(job) + (f" of {user_name(job.uid)}" if with_users else "") for job in jobs])


def described(job: Job, inventory: Inventory) -> str:
    """``train.py (pid 4121) on GPU 2, 3 processes, for 45 min``."""
    gpus, is_waiting = _labels(job, inventory), all(isinstance(member, Waiter) for member in job.members)
    where = f" on {explain.gpu_names(gpus)}" if gpus else " waiting for a GPU" if is_waiting else ""
    processes = f", {counted(len(job.pids_here), 'process', 'processes')}" if len(job.pids_here) > 1 else ""
    return f"{name_of(job)}{where}{processes}, for {span(job.age_s)}"


def _labels(job: Job, inventory: Inventory) -> list[str]:
    return [device.label for device in inventory.devices if device.uuid in job.claims]


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
    """Find the jobs that are on that GPU, or on an instance of it; and say so."""
    found = [job for job in jobs if any(number in (gpu, gpu.partition(":")[0]) for gpu in _labels(job, inventory))]
    return f"seen on GPU {printable(number, 20)}", found


def only_one(what: str, means: Sequence[Job], jobs: Sequence[Job], verb: str) -> Job:
    """The one that was found, apart from the job of this command; else an error that lists what there is."""
    others = [job for job in means if not _is_own(job)]
    if len(others) == 1:
        return others[0]
    none = "you have none" if verb == "stop" else "there is none"
    there_are = f"there are {names_of(jobs, with_users=True)}" if jobs else none
    job = "other job" if means else "job"
    why, remedy = f"no {job} of autogpu's is {what}; {there_are}", "`autogpu status` shows all that use a GPU"
    if others:
        why = f"{len(others)} jobs are {what}: {names_of(others, with_users=True)}"
        remedy = f"say which by its pid, as in `autogpu {verb} {others[0].pid}`"
    raise AutoGpuError(why, remedy=remedy)


def watch(jobs: Sequence[Job]) -> Callable[[], Sequence[Job]]:
    """Return a function that finds what is left of ``jobs``, also of one that waited and holds now, or lost a member.

    It may miss one at a look: who is served leaves the queue before its lease is seen.
    """
    keys = {key for job in jobs for key in _keys(job)}

    def look() -> Sequence[Job]:
        left = [job for job in read_jobs(()) if not keys.isdisjoint(_keys(job))]
        keys.update(key for job in left for key in _keys(job))
        return left

    return look


def _keys(job: Job) -> Iterator[tuple[object, ...]]:
    for record in job.members:
        yield record.uid, record.name
        if record.pid is not None:
            yield record.uid, record.pid_namespace, record.pid, record.start_time


def wait_for_jobs(names: Sequence[str], within_s: float) -> int:
    """Wait for the end of the named jobs, or of all of one's own; the locks of their leases tell it."""
    until_s = monotonic_s() + within_s
    jobs = left = _jobs_to_wait_for(names)
    # Others of this user may come meanwhile.
    look = watch(jobs) if names else partial(_jobs_to_wait_for, ())
    if jobs and is_terminal():
        say(f"waiting for the end of {names_of(jobs)}; Ctrl-C stops")
    while left:
        left_s = until_s - monotonic_s()
        if left_s <= 0:
            still = f"{names_of(left)} {'still runs' if len(left) == 1 else 'have not all ended'}"
            remedy = "to wait longer: leave --timeout out; `autogpu status` shows them"
            raise WaitTimeout(f"{still} after {span(within_s)}", remedy=remedy)
        time.sleep(min(_LOOK_EVERY_S, left_s))
        left = look() or look()
    ended = f"{names_of(jobs)} {'has' if len(jobs) == 1 else 'have'} ended"
    say(ended if jobs else "you have no other job here that holds a GPU or waits for one")
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
