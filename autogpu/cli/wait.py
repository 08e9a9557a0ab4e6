"""``autogpu wait`` waits for free GPUs or for the end of jobs, without a claim or a place in the queue."""

from __future__ import annotations

import math
import os
import shlex
import time
from typing import Mapping, Sequence

import click

from autogpu.acquire import WaitReadings
from autogpu.cli.jobs import wait_for_jobs
from autogpu.cli.request import decide_now, duration, in_words, policy_options, request_gpus, resolve_flags
from autogpu.devices import probe
from autogpu.errors import AutoGpuError, WaitTimeout
from autogpu.frozen import replace
from autogpu.policy.model import BY_NAME
from autogpu.process import monotonic_s
from autogpu.reporting.gpus import labels
from autogpu.selection.decision import Decision, Verdict
from autogpu.selection.model import SelectionRequest
from autogpu.stderr import is_terminal, say
from autogpu.text import exact_span, listed

# Seconds between readings of the driver, as for a job in the queue. The lease folder is not enough: it does not
# change when a process without a claim ends.
_LOOK_EVERY_S = 2.0


@click.command(
    epilog="""Exit status: 0 if enough GPUs are free or the jobs have ended, 1 if waiting can't help or no such job
exists, 75 after --timeout, 130 after Ctrl-C.

\b
Examples:
  autogpu wait --count 2 && notify-send "GPUs are free"
  autogpu wait --need 6GiB --timeout 2h && printf '\\a'
  autogpu wait --timeout 0
  autogpu wait --mine && notify-send done
  autogpu wait --job 4121 && python next.py"""
)
@policy_options("select", without=("busy", "wait", "visible"))
@click.option(
    "--job",
    "names",
    metavar="PID",
    multiple=True,
    help="Wait until this job has ended. Pass one of its pids, or the name of its script. The job may be another "
    "user's.",
)
@click.option("--mine", "is_mine", is_flag=True, help="Wait until no job of yours holds a GPU or waits for one.")
@click.option(
    "--timeout",
    "timeout_s",
    type=duration,
    help='Give up after this time, such as "90s", "30m" or "2h". "0" checks once. By default there is no limit.',
)
def wait(flags: Mapping[str, str], names: Sequence[str], is_mine: bool, timeout_s: float | None) -> int:
    """Wait until enough GPUs are free, or until jobs have ended.

    A GPU counts as free if nobody uses it. If a need is set, by --need or in the policy, a GPU in use also counts if
    it has that much memory left. The queue comes first: a GPU that a queued job could use does not count.

    With --job or --mine, the command waits for the end of jobs, even if they fail.

    This command claims nothing and has no place in the queue. To start a job as soon as possible, use
    `autogpu run --hold --busy wait -- command`, or AUTOGPU_BUSY=wait.
    """
    within_s = math.inf if timeout_s is None else timeout_s
    if names or is_mine:
        _refuse_with_jobs(flags, names, is_mine)
        return wait_for_jobs(names, within_s)
    remedy = "waiting can't help; if this is a container, see `autogpu doctor`"
    request = request_gpus(resolve_flags(flags), os.environ, without_driver=remedy)
    # Decide as for a job that waits in the queue. With busy = "share" the wait would end at once in most cases, because
    # a job may then join the jobs on a GPU.
    request = replace(request, busy="wait")
    decision = _decision_at_the_end(request, within_s)
    why = in_words(decision)
    if decision.verdict is Verdict.WAIT:
        remedy = "to wait longer: raise --timeout, or leave it out; `autogpu status` lists the jobs that hold GPUs"
        raise WaitTimeout(f"gave up after {exact_span(within_s)}: {why}", remedy=remedy)
    if decision.verdict is not Verdict.TAKE:
        raise AutoGpuError(f"waiting can't help: {why}", remedy="")
    found = labels(decision.devices)
    asked = "".join(f"{BY_NAME[name].flag} {shlex.quote(text)} " for name, text in flags.items())
    verb = "is" if len(decision.devices) == 1 else "are"
    say(f"{found} {verb} available now (not reserved): {why}; to reserve: `autogpu run --hold {asked}-- command`")
    return 0


def _refuse_with_jobs(flags: Mapping[str, str], names: Sequence[str], is_mine: bool) -> None:
    """Refuse the options that can't be combined with ``--job`` or ``--mine``."""
    others = [BY_NAME[name].flag for name in flags] + ["--mine"] * (is_mine and bool(names))
    if others:
        option = "--job" if names else "--mine"
        raise click.UsageError(f"{option} can't be combined with {listed(others)}")


def _decision_at_the_end(request: SelectionRequest, within_s: float) -> Decision:
    """Return the first decision other than to wait, or the last decision if the time runs out."""
    until_s = monotonic_s() + within_s
    decision, _ = decide_now(request, "waiting")
    if decision.verdict is Verdict.WAIT and within_s and is_terminal():
        say(f"waiting without a place in the queue: {in_words(decision)}; press Ctrl-C to stop")
    readings = WaitReadings()
    while decision.verdict is Verdict.WAIT and monotonic_s() < until_s:
        time.sleep(min(_LOOK_EVERY_S, max(0.0, until_s - monotonic_s())))
        # Read the driver in this process: a process of its own would take ten times as long.
        inventory = probe.finish(probe.start_in_process(os.environ, request.inventory))
        # If the driver fails, keep the last reading, so that a wait of hours does not end. A lost GPU may end the wait.
        if readings.should_use(inventory, decision) and not inventory.failure:
            request = replace(request, inventory=inventory)
        decision, _ = decide_now(request, "waiting")
    return decision
