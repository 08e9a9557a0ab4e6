"""The jobs of this host, found by pid or script, and the wait for their end."""

from __future__ import annotations

import os
import re
import time
from functools import partial
from typing import Callable, Iterable, Iterator, Sequence

from autogpu import lease
from autogpu.errors import AutoGpuError, WaitTimeout
from autogpu.lease.model import Holder
from autogpu.process import monotonic_s, unix_s
from autogpu.selection.jobs import Job, jobs_of
from autogpu.status.snapshot import read_leases
from autogpu.stderr import is_terminal, say
from autogpu.text import exact_span, listed, printable
from autogpu.users import user_name

_LOOK_EVERY_S = 1.0


def _name_of(job: Job) -> str:
    return f"{job.script or '?'} (pid {job.pid or '?'})"


def _names_of(jobs: Sequence[Job]) -> str:
    return listed([_name_of(job) for job in jobs])


def _names_with_users(jobs: Sequence[Job]) -> str:
    return listed([f"{_name_of(job)} of {user_name(job.uid)}" for job in jobs])


def _is_own(job: Job) -> bool:
    """True if this process belongs to the job. The job may then keep its lease locked until this process ends."""
    return os.getpid() in job.pids_here


def _read_jobs(names: Iterable[str] = ()) -> Sequence[Job]:
    """Return all users' jobs: first the jobs that hold GPUs, by the time of their claim, then the waiting jobs.

    Args:
        names: Pids and scripts that the caller will look up. A pid among them is matched to its job, even if the
            driver does not list it.

    Raises:
        AutoGpuError: The lease folder can't be trusted or read.
    """
    read = read_leases(os.environ)
    if read.problem:
        raise AutoGpuError(
            f"can't list the jobs of this host: {read.problem}", remedy="to find the cause: `autogpu doctor`"
        )
    records: list[Holder] = [*read.leases.holders, *read.leases.waiters]
    pids = {os.getpid()}
    pids.update(pid for pid in map(_pid_of, names) if pid is not None)
    return jobs_of(records, lease.processes_of(records, pids, is_complete=True), (), unix_s())


def _pid_of(text: str) -> int | None:
    return int(text) if re.fullmatch("[0-9]{1,10}", text) else None


def _find_jobs(jobs: Sequence[Job], name: str) -> tuple[str, Sequence[Job]]:
    """Return a description for messages (``with pid 7``, ``called train.py``), and the jobs with that pid or script."""
    pid = _pid_of(name)
    if pid is None:
        script = name.rpartition("/")[2]
        return f"called {printable(name, 80)}", [job for job in jobs if job.script == script]
    here = [job for job in jobs if pid in job.pids_here]
    # A job in a container has pids of another namespace. The user sees them in the output of `status`.
    return f"with pid {pid}", here or [job for job in jobs if job.pid == pid and not job.pids_here]


def _watch(jobs: Sequence[Job]) -> Callable[[], Sequence[Job]]:
    """Return a function that returns the jobs that have not ended.

    It recognizes a job that has got its GPUs meanwhile, or has lost a process. One call may miss a job: a waiting job
    replaces its ticket by a lease, and a reading at that moment may see neither.
    """
    keys = {key for job in jobs for key in _keys(job)}

    def look() -> Sequence[Job]:
        left = [job for job in _read_jobs() if not keys.isdisjoint(_keys(job))]
        keys.update(key for job in left for key in _keys(job))
        return left

    return look


def _keys(job: Job) -> Iterator[tuple[object, ...]]:
    for record in job.members:
        yield record.uid, record.name
        if record.pid is not None:
            yield record.uid, record.pid_namespace, record.pid, record.start_time


def wait_for_jobs(names: Sequence[str], within_s: float) -> int:
    """Wait until the named jobs have ended; without names, until all other jobs of this user have ended.

    A job has ended when its lease is unlocked.
    """
    until_s = monotonic_s() + within_s
    jobs = left = _jobs_to_wait_for(names)
    # Without names, jobs that this user starts in the meantime count as well.
    look = _watch(jobs) if names else partial(_jobs_to_wait_for, ())
    if jobs and is_terminal():
        say(f"waiting for the end of {_names_of(jobs)}; press Ctrl-C to stop waiting")
    while left:
        left_s = until_s - monotonic_s()
        if left_s <= 0:
            still = f"{_names_of(left)} {'has' if len(left) == 1 else 'have'} not ended"
            remedy = "to wait longer: raise --timeout, or leave it out; `autogpu status` shows the jobs"
            raise WaitTimeout(f"{still} after {exact_span(within_s)}", remedy=remedy)
        time.sleep(min(_LOOK_EVERY_S, left_s))
        left = look() or look()
    ended = f"{_names_of(jobs)} {'has' if len(jobs) == 1 else 'have'} ended"
    say(ended if jobs else "you have no other job here that holds a GPU or waits for one")
    return 0


def _jobs_to_wait_for(names: Sequence[str]) -> Sequence[Job]:
    jobs = _read_jobs(names)
    others = [job for job in jobs if not _is_own(job)]
    if names:
        return [_job_named(jobs, name, others) for name in names]
    return [job for job in others if job.uid == os.getuid()]


def _job_named(jobs: Sequence[Job], name: str, others: Sequence[Job]) -> Job:
    """Return the job with that name, except the job of this command.

    Raises:
        AutoGpuError: No job has the name, or several jobs have it.
    """
    what, found = _find_jobs(jobs, name)
    # Several users may run a train.py: prefer the job of this user.
    mine = [job for job in found if job.uid == os.getuid()]
    candidates = [job for job in mine or found if not _is_own(job)]
    if not candidates:
        other = "other " if found else ""
        rest = f"jobs here: {_names_with_users(others)}" if others else f"no {other}job holds a GPU or waits for one"
        remedy = "`autogpu status` shows all jobs and processes on GPUs"
        raise AutoGpuError(f"there is no {other}autogpu job {what}; {rest}", remedy=remedy)
    if len(candidates) > 1:
        why = f"there are {len(candidates)} jobs {what}: {_names_with_users(candidates)}"
        raise AutoGpuError(why, remedy=f"choose one by its pid, as in `autogpu wait --job {candidates[0].pid}`")
    return candidates[0]
