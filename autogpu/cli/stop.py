"""``autogpu stop``: end a job of one's own, after showing what it is."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Iterable, Iterator, Mapping, Sequence

import click

from autogpu import lease, process
from autogpu.cli.jobs import described, name_of, named, names_of, on_gpu, only_one, read_jobs, watch
from autogpu.cli.request import duration
from autogpu.devices import probe
from autogpu.devices.model import Inventory
from autogpu.errors import AutoGpuError, WaitTimeout
from autogpu.process import monotonic_s
from autogpu.selection.jobs import Job
from autogpu.stderr import say
from autogpu.text import span

_LOOK_EVERY_S = 0.05


@click.command(
    epilog="""Exit status: 0 when the job has ended, 1 if nothing was stopped, 75 if it still runs after --grace.

\b
Examples:
  autogpu stop train.py
  autogpu stop --gpu 2
  autogpu stop train.py --yes"""
)
@click.argument("name", metavar="[PID|SCRIPT]", required=False)
@click.option("--gpu", metavar="NUMBER", help="The job of yours that is on this GPU, as `autogpu status` numbers it.")
@click.option("-y", "--yes", "is_sure", is_flag=True, help="Don't ask.")
@click.option(
    "--grace", "grace_s", type=duration, default="10s", show_default=True, help="How long it may take to end."
)
def stop(name: str | None, gpu: str | None, is_sure: bool, grace_s: float) -> int:
    """End a job of yours, also one that waits in the queue: by a pid, the name of its script, or its GPU.

    It shows the job, and asks. Then it sends SIGTERM, at which a program may save what it has, and says what still
    runs after --grace. A process that is of no job of autogpu's is not touched, nor is another user's job, even by
    root.
    """
    if (name is None) == (gpu is None):
        raise click.UsageError(
            "name one job: by a pid, the name of its script, or --gpu; `autogpu status --mine` has them"
        )
    inventory = probe.finish(probe.start(os.environ))
    job = _job_to_stop(name, gpu, inventory)
    # Now: a person may take long to answer, and a pid may be another's by then.
    known = _starts(job.pids_here)
    click.echo(described(job, inventory), err=True)
    if not is_sure and not sys.stdin.isatty():
        why = "nothing is stopped: there is no terminal to ask on"
        raise AutoGpuError(why, remedy=f"autogpu stop {job.pid} --yes")
    if not is_sure and not click.confirm("Stop it?", err=True):
        raise AutoGpuError("nothing is stopped", remedy="")
    left = _left_after(grace_s, job, known)
    if left is not None:
        pids = " ".join(str(pid) for pid in left if _real_user(pid) == os.getuid())
        remedy = f"to end all of it at once: kill -9 {pids}" if pids else "`autogpu status` shows what is left"
        raise WaitTimeout(f"{name_of(job)} still runs {span(grace_s)} after SIGTERM", remedy=remedy)
    say(f"{name_of(job)} has ended")
    return 0


def _job_to_stop(name: str | None, gpu: str | None, inventory: Inventory) -> Job:
    """The one job of this user that is meant, if its processes can be told here."""
    jobs = read_jobs([name or ""], inventory.devices)
    what, found = named(jobs, name) if name is not None else on_gpu(jobs, gpu or "", inventory)
    mine = [job for job in found if job.uid == os.getuid()]
    if found and not mine:
        others = names_of(found, with_users=True)
        raise AutoGpuError(f"nothing is stopped: no job of yours is {what}, but {others}", remedy="ask its owner")
    job = only_one(what, mine, [each for each in jobs if each.uid == os.getuid()], "stop")
    if not job.pids_here:
        what = f"the processes of {name_of(job)} can't be told here: they are in a container, or hidden"
        raise AutoGpuError(what, remedy="stop it where it was started")
    return job


def _left_after(grace_s: float, job: Job, known: Mapping[int, int]) -> Sequence[int] | None:
    """Send SIGTERM to those whose leases it are, and to what outlives them; all pids of what has not ended in time.

    What a holder has started is its own to end: `run --hold` hands a signal on, and twice is once too much for a
    handler that writes a checkpoint.
    """
    look, until_s = watch([job]), monotonic_s() + grace_s
    sent: set[tuple[int, int]] = set()
    while True:
        left = look() or look()
        alive = {pid: start for pid, start in known.items() if process.start_time(pid) == start}
        targets = _starts(_keepers(left)) if left else alive
        for pid, start in targets.items() - sent:
            _send_sigterm(pid, start)
        sent |= targets.items()
        if not left and not alive:
            return None
        if monotonic_s() >= until_s:
            return process.with_descendants({**alive, **targets})
        time.sleep(_LOOK_EVERY_S)


def _keepers(jobs: Iterable[Job]) -> Iterator[int]:
    """Of each lease its holder, or who keeps it alive."""
    members = [member for job in jobs for member in job.members]
    for pids in lease.processes_of(members, (), is_complete=True).of_lease.values():
        yield from pids[:1]


def _starts(pids: Iterable[int]) -> dict[int, int]:
    """By pid, when each process started: with that it is one for ever, and the pid may be another's later."""
    starts = {pid: process.start_time(pid) for pid in pids}
    return {pid: start for pid, start in starts.items() if start is not None}


def _send_sigterm(pid: int, start: int) -> None:
    if process.start_time(pid) == start and _real_user(pid) == os.getuid():
        with suppress(ProcessLookupError):
            try:
                os.kill(pid, signal.SIGTERM)
                os.kill(pid, signal.SIGCONT)  # a job that is stopped (Ctrl-Z) takes no other signal before it goes on
            except PermissionError as error:
                say(f"pid {pid} can't be stopped: {error.strerror}")


def _real_user(pid: int) -> int | None:
    """Not the owner of its files in ``/proc``, who is root where it may not be dumped."""
    with suppress(OSError):
        found = re.search(r"^Uid:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(errors="replace"), re.MULTILINE)
        return process.user_of(int(found[1])) if found else None
    return None
