"""``autogpu stop``: end a job of one's own, after showing what it is."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Callable, Iterable, Mapping, Sequence

import click

from autogpu import lease, process
from autogpu.cli.jobs import described, name_of, named, names_of, on_gpu, only_one, read_jobs, told_in_json, watch
from autogpu.cli.request import duration, uid_of
from autogpu.devices import probe
from autogpu.devices.model import Inventory
from autogpu.errors import AutoGpuError, WaitTimeout
from autogpu.process import monotonic_s
from autogpu.reporting.stderr import say
from autogpu.reporting.text import listed, printable, span, user_name
from autogpu.selection.jobs import Job

_LOOK_EVERY_S = 0.05


@click.command(
    epilog="""Exit status: 0 when the job has ended, 1 if nothing was stopped, 75 if it still runs after --grace.

\b
Examples:
  autogpu stop train.py
  autogpu stop --gpu 2
  autogpu stop train.py --yes --kill"""
)
@click.argument("name", metavar="[PID|SCRIPT]", required=False)
@click.option("--gpu", metavar="NUMBER", help="The job of yours that is on this GPU, as `autogpu status` numbers it.")
@click.option("-y", "--yes", "is_sure", is_flag=True, help="Don't ask.")
@click.option("--kill", "is_killed", is_flag=True, help="Send SIGKILL, to all of its processes.")
@click.option(
    "--grace", "grace_s", type=duration, default="10s", show_default=True, help="How long it may take to end."
)
@click.option("--user", metavar="NAME", help="For root: a job of this user.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON at the end.")
def stop(
    name: str | None, gpu: str | None, is_sure: bool, is_killed: bool, grace_s: float, user: str | None, as_json: bool
) -> int:
    """End a job of yours, also one that waits in the queue: by a pid, the name of its script, or its GPU.

    It shows the job, and asks. Then it sends SIGTERM, at which a program may save what it has; without --kill it does
    no more, and says what still runs after --grace. A process that is of no job of autogpu's is not touched, nor is a
    job of another user; root ends those with --user.
    """
    if (name is None) == (gpu is None):
        raise click.UsageError(
            "name one job: by a pid, the name of its script, or --gpu; `autogpu status --mine` has them"
        )
    number = signal.SIGKILL if is_killed else signal.SIGTERM
    with told_in_json("not_stopped", as_json=as_json, jobs=()) as told:
        own = os.getuid()
        uid = own if user is None else uid_of(user)
        if own not in (0, uid):
            raise AutoGpuError("only root ends the jobs of other users", remedy=f"ask {printable(user or '')}")
        inventory = probe.finish(probe.start(os.environ))
        job = _job_to_stop(name, gpu, uid, inventory)
        told["jobs"] = [job]
        # Now: a person may take long to answer, and a pid may be another's by then.
        known = _starts(process.with_descendants(job.pids_here) if is_killed else job.pids_here)
        click.echo(described(job, inventory), err=True)
        if not is_sure and not sys.stdin.isatty():
            why = "nothing is stopped: there is no terminal to ask on"
            raise AutoGpuError(why, remedy=f"autogpu stop {job.pid} --yes")
        if not is_sure and not click.confirm("Stop it?", err=True):
            raise AutoGpuError("nothing is stopped", remedy="")
        told["verdict"] = "running"
        if not _ends(job, known, number, grace_s):
            remedy = f"to end it at once: autogpu stop {job.pid} --kill"
            remedy += f" --user {shlex.quote(printable(user))}" if user else ""
            raise WaitTimeout(
                f"{name_of(job)} still runs {span(grace_s)} after {number.name}",
                remedy="`ps` shows what it waits for" if is_killed else remedy,
            )
        told.update(verdict="ended", why=f"{name_of(job)} has ended")
    say(str(told["why"]))
    return 0


def _job_to_stop(name: str | None, gpu: str | None, uid: int, inventory: Inventory) -> Job:
    """The one job of that user that is meant, if its processes can be told here."""
    if gpu is not None and inventory.failure:
        raise AutoGpuError(printable(inventory.failure), remedy="name the job by a pid or its script")
    jobs = read_jobs([name or ""], inventory.devices)
    what, found = named(jobs, name) if name is not None else on_gpu(jobs, gpu or "", inventory)
    theirs = [job for job in found if job.uid == uid]
    if found and not theirs:
        raise _of_others(what, found)
    job = only_one(what, theirs, [each for each in jobs if each.uid == uid], "stop")
    if not job.pids_here:
        what = f"the processes of {name_of(job)} can't be told here: they are in a container, or hidden"
        raise AutoGpuError(what, remedy="stop it where it was started")
    return job


def _of_others(what: str, jobs: Sequence[Job]) -> AutoGpuError:
    owners, command = [user_name(job.uid) for job in jobs], f"autogpu stop {jobs[0].pid} --user"
    seen, roots = f"{name_of(jobs[0])} is a job of {owners[0]}", f"{command} {shlex.quote(owners[0])}"
    if len(jobs) > 1:
        seen = f"{len(jobs)} jobs of other users are {what}: {names_of(jobs, with_users=True)}"
        roots = f"say which, as in `{roots}`"
    remedy = roots if os.getuid() == 0 else f"ask {listed([*dict.fromkeys(owners)])}"
    return AutoGpuError(f"nothing is stopped: {seen}", remedy=remedy)


def _ends(job: Job, known: Mapping[int, int], number: signal.Signals, grace_s: float) -> bool:
    """Send the signal to those whose leases it are, and to what outlives them; the job has ended in time.

    What a holder has started is its own to end: `run --hold` hands a signal on, and twice is once too much for a
    handler that writes a checkpoint. SIGKILL can't be handed on, and goes to all of them.
    """
    left_of, until_s = watch([job], lease.find_folder(os.environ, make=False)), monotonic_s() + grace_s
    sent: set[tuple[int, int]] = set()
    while True:
        left = left_of()
        alive = {pid: start for pid, start in known.items() if process.start_time(pid) == start}
        if not left and not alive:
            return True
        holders = lease.processes_of(left, (), is_complete=True).of_lease
        targets = _starts(pids[0] for pids in holders.values() if pids)
        targets.update(alive if not left or number == signal.SIGKILL else {})
        for pid, start in targets.items() - sent:
            _send(pid, start, job.uid, number)
        sent |= targets.items()
        if monotonic_s() >= until_s:
            return False
        time.sleep(_LOOK_EVERY_S)


def _starts(pids: Iterable[int]) -> dict[int, int]:
    """By pid, when each process started: with that it is one for ever, and the pid may be another's later."""
    starts = {pid: process.start_time(pid) for pid in pids}
    return {pid: start for pid, start in starts.items() if start is not None}


def _send(pid: int, start: int, uid: int, number: signal.Signals) -> None:
    send: Callable[[int], None] = partial(os.kill, pid)
    with ExitStack() as stack, suppress(ProcessLookupError):
        with suppress(AttributeError, OSError):  # Python before 3.9, or a kernel before 5.3
            descriptor = os.pidfd_open(pid)
            stack.callback(os.close, descriptor)
            send = partial(signal.pidfd_send_signal, descriptor)
        # The descriptor stays with the process that it was opened for: what is true now is true of that one.
        if process.start_time(pid) == start and _real_user(pid) == uid:
            try:
                send(number)
                send(signal.SIGCONT)  # a job that is stopped (Ctrl-Z) takes no other signal before it goes on
            except PermissionError as error:
                say(f"pid {pid} can't be stopped: {error.strerror}")


def _real_user(pid: int) -> int | None:
    """Not the owner of its files in ``/proc``, who is root where it may not be dumped."""
    with suppress(OSError):
        found = re.search(r"^Uid:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(errors="replace"), re.MULTILINE)
        return process.user_of(int(found[1])) if found else None
    return None
