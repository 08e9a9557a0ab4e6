"""``autogpu wait --job`` and ``--mine``: return when jobs have ended, which the locks of their leases tell."""

from __future__ import annotations

import math
import os
import signal
from contextlib import contextmanager
from typing import Callable, Iterator, Sequence

from autogpu import lease
from autogpu.cli.jobs import (
    JobHere,
    Record,
    Watch,
    named,
    names_of,
    only_one,
    own_job,
    read_jobs,
    records_of,
    told_in_json,
)
from autogpu.errors import WaitTimeout
from autogpu.lease import Folder, LeaseSnapshot
from autogpu.process import monotonic_s
from autogpu.reporting.stderr import is_terminal, say
from autogpu.reporting.text import span


class _TimeIsOver(Exception):
    pass


def wait_for_jobs(names: Sequence[str], timeout_s: float | None, *, as_json: bool) -> int:
    """Wait for the end of the jobs of these names; without any, of all jobs of this user."""
    with told_in_json("no_such_job", as_json=as_json) as told:
        folder, jobs, alive = _what_is_waited_for(names)
        told["jobs"] = [job.values() for job in jobs]
        if jobs and is_terminal():
            say(f"waiting for the end of {names_of(jobs)}; Ctrl-C stops")
        if folder is not None and jobs and not _ends_in_time(folder, alive, timeout_s):
            after = f"after {span(timeout_s or 0)}"
            why = f"{names_of(jobs)} still runs {after}"
            if len(jobs) != 1:
                why = f"not all of {names_of(jobs)} have ended {after}"
            raise WaitTimeout(why, remedy="to wait longer: --timeout 1h; `autogpu status` shows them")
        told["why"] = f"{names_of(jobs)} {'has' if len(jobs) == 1 else 'have'} ended"
        if not jobs:
            told["why"] = "you have no other job here that holds a GPU or waits for one"
    say(str(told["why"]))
    return 0


def _what_is_waited_for(
    names: Sequence[str],
) -> tuple[Folder | None, Sequence[JobHere], Callable[[LeaseSnapshot], Sequence[Record]]]:
    """The folder of the leases, the jobs, and what tells which of their files are left."""
    folder, everything = read_jobs(names)
    own, others = [job for job in everything if job.is_own], [job for job in everything if not job.is_own]
    for name in names:
        if named(own, name) and not named(others, name):
            raise own_job(own[0], "start `autogpu wait` outside of it")
    if names:
        jobs = [only_one(named(others, name), others, name, "wait --job") for name in names]
        return folder, jobs, Watch(jobs).alive
    own_watch, uid = Watch(own), os.getuid()

    def alive(leases: LeaseSnapshot) -> Sequence[Record]:
        own_records = own_watch.alive(leases)
        return [each for each in records_of(leases) if each.uid == uid and each not in own_records]

    return folder, [job for job in others if job.uid == uid], alive


def _ends_in_time(folder: Folder, alive: Callable[[LeaseSnapshot], Sequence[Record]], timeout_s: float | None) -> bool:
    until_s = math.inf if timeout_s is None else monotonic_s() + timeout_s
    try:
        with _alarm(timeout_s):
            while True:
                # Twice: who is served leaves the queue and holds, and one look can miss both of its files.
                left = alive(lease.snapshot(folder)) or alive(lease.snapshot(folder))
                if not left or monotonic_s() >= until_s:
                    return not left
                with folder.opened() as descriptor:
                    lease.wait_for_end(descriptor, left[0].name)
    except _TimeIsOver:
        return False


@contextmanager
def _alarm(timeout_s: float | None) -> Iterator[None]:
    """Raise :class:`_TimeIsOver` in the body when the time is over: nothing else ends a wait for a lock."""
    if not timeout_s:
        yield
        return

    def ring(*_: object) -> None:
        raise _TimeIsOver

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
