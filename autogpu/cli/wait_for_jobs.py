"""``autogpu wait --job`` and ``--mine``: return when jobs have ended, which the locks of their leases tell."""

from __future__ import annotations

import math
import os
import threading
import time
from contextlib import suppress
from typing import Sequence

from autogpu import lease
from autogpu.cli.jobs import Watch, is_own, named, names_of, only_one, read_jobs, told_in_json
from autogpu.errors import AutoGpuError, WaitTimeout
from autogpu.lease import Folder
from autogpu.process import monotonic_s
from autogpu.reporting.stderr import is_terminal, say
from autogpu.reporting.text import span
from autogpu.selection.jobs import Job

# Where the system does not tell when a lock is gone.
_LOOK_EVERY_S = 2.0


def wait_for_jobs(names: Sequence[str], timeout_s: float | None, *, as_json: bool) -> int:
    """Wait for the end of the jobs of these names; without any, of all jobs of this user."""
    until_s = math.inf if timeout_s is None else monotonic_s() + timeout_s
    with told_in_json("no_such_job", as_json=as_json, jobs=()) as told:
        jobs = left = _jobs_to_wait_for(names)
        told.update(verdict="running", jobs=jobs)
        if jobs and is_terminal():
            say(f"waiting for the end of {names_of(jobs)}; Ctrl-C stops")
        while left:
            if not _end_before(until_s, left):
                still = f"{names_of(left)} {'still runs' if len(left) == 1 else 'have not all ended'}"
                remedy = "to wait longer: --timeout 1h; `autogpu status` shows them"
                raise WaitTimeout(f"{still} after {span(timeout_s or 0)}", remedy=remedy)
            # Others of this user may have come meanwhile. Twice: who is served leaves the queue and holds.
            left = () if names else _jobs_to_wait_for(()) or _jobs_to_wait_for(())
        ended = f"{names_of(jobs)} {'has' if len(jobs) == 1 else 'have'} ended"
        why = ended if jobs else "you have no other job here that holds a GPU or waits for one"
        told.update(verdict="ended", why=why)
    say(why)
    return 0


def _jobs_to_wait_for(names: Sequence[str]) -> Sequence[Job]:
    jobs = read_jobs(names)
    others = [job for job in jobs if not is_own(job)]
    if names:
        return [_named(jobs, name, others) for name in names]
    return [job for job in others if job.uid == os.getuid()]


def _named(jobs: Sequence[Job], name: str, others: Sequence[Job]) -> Job:
    what, means = named(jobs, name)
    # Everybody's script may be called train.py.
    mine = [job for job in means if job.uid == os.getuid()]
    return only_one(what, mine or means, others, "wait --job")


def _end_before(until_s: float, jobs: Sequence[Job]) -> bool:
    watch = Watch(jobs)
    while True:
        left = watch.alive()
        if not left or monotonic_s() >= until_s:
            return not left
        # In a thread, which this process need not wait for: nothing but a signal ends a wait for a lock.
        waiting = threading.Thread(target=_wait_for_end, args=(watch.folder, left[0].name), daemon=True)
        waiting.start()
        waiting.join(min(until_s - monotonic_s(), threading.TIMEOUT_MAX))


def _wait_for_end(folder: Folder, name: str) -> None:
    with suppress(OSError, AutoGpuError), folder.opened() as descriptor:
        lease.wait_for_end(descriptor, name)
        return
    time.sleep(_LOOK_EVERY_S)
