"""``autogpu wait``: return when a job could be served, or has ended. Nothing is held, and no place is taken."""

from __future__ import annotations

import math
import os
import time
from typing import Mapping, Sequence

import click

from autogpu.acquire import FurtherReadings
from autogpu.cli.jobs import told_in_json, wait_for_jobs
from autogpu.cli.request import decide_now, duration, in_words, policy_options, request_gpus, resolve_flags
from autogpu.devices import probe
from autogpu.errors import AutoGpuError, WaitTimeout
from autogpu.frozen import replace
from autogpu.policy.model import BY_NAME
from autogpu.process import monotonic_s
from autogpu.reporting.stderr import is_terminal, say
from autogpu.reporting.text import listed, span
from autogpu.selection import explain
from autogpu.selection.model import Decision, SelectionRequest, Verdict

# The driver, as often as a job in the queue reads it: processes without a claim change nothing in the folder.
_LOOK_EVERY_S = 2.0


def _no_words(ctx: click.Context, param: click.Parameter, words: Sequence[str]) -> None:
    if words:
        raise click.UsageError(f"{words[0]!r} is no option; to wait for a job: --job {words[0]}")


@click.command(
    epilog="""Exit status: 0 when it could be served or has ended, 1 if waiting can't help or there is no such job, 75
after --timeout, 130 after Ctrl-C.

\b
Examples:
  autogpu wait --count 2 && notify-send "GPUs are free"
  autogpu wait --need 6GiB --timeout 2h && printf '\\a'
  autogpu wait --timeout 0
  autogpu wait --mine && notify-send done
  autogpu wait --job 4121 && python next.py"""
)
@policy_options("select", without=("busy", "wait", "visible", "identifier"))
@click.option(
    "--job",
    "names",
    metavar="PID",
    multiple=True,
    help="Return when this job has ended instead, also another user's: a pid of it, or the name of its script.",
)
@click.option("--mine", "is_mine", is_flag=True, help="Return when no job of yours holds a GPU or waits for one.")
@click.option(
    "--timeout",
    "timeout_s",
    type=duration,
    help='How long to wait at most, such as "90s", "30m" or "2h"; "0" looks once. Without it there is no end.',
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON at the end.")
@click.argument("words", nargs=-1, metavar="", expose_value=False, callback=_no_words)
def wait(flags: Mapping[str, str], names: Sequence[str], is_mine: bool, timeout_s: float | None, as_json: bool) -> int:
    """Return when a job that asks for this could be served as it would be after waiting in the queue; with --job or
    --mine, when jobs have ended, in whichever way.

    That is an unused GPU; for a job that says what it needs, by --need or in its policy, also one that others
    use and that has so much free memory. Nothing is held, and the jobs in the queue are served first: a GPU that one of
    them could use does not count. A job that shall start as soon as it can has a place there: `autogpu run --hold
    --busy wait -- command`, or AUTOGPU_BUSY=wait.
    """
    within_s = math.inf if timeout_s is None else timeout_s
    if names or is_mine:
        others = [BY_NAME[name].flag for name in flags] + ["--mine"] * (is_mine and bool(names))
        if others:
            option = "--job" if names else "--mine"
            raise click.UsageError(f"{option} waits for an end, and can't be combined with {listed(others)}")
        return wait_for_jobs(names, within_s, as_json=as_json)
    resolved = resolve_flags(flags)
    with told_in_json("cannot_choose", as_json=as_json, uuids=()) as told:
        request = request_gpus(resolved, os.environ)
        # Beside others a job could nearly always be placed; what is awaited here is what the queue awaits.
        request = replace(request, policy=replace(request.policy, busy="wait"))
        decision = _decision_at_the_end(request, within_s)
        why = in_words(decision)
        told.update(verdict=decision.verdict.name.lower(), why=why)
        if decision.verdict is Verdict.WAIT:
            remedy = "to wait longer: --timeout 1h; `autogpu status` lists the holders"
            raise WaitTimeout(f"gave up after {span(within_s)}: {why}", remedy=remedy)
        if decision.verdict is not Verdict.TAKE:
            raise AutoGpuError(f"waiting can't help: {why}", remedy="")
        told["uuids"] = [device.uuid for device in decision.devices]
    found = explain.gpu_names(device.label for device in decision.devices)
    say(f"{found} could be had now (not reserved): {why}; to reserve: `autogpu run --hold -- command`")
    return 0


def _decision_at_the_end(request: SelectionRequest, within_s: float) -> Decision:
    """The first decision that is not to wait, or the last one before the time is over."""
    begun_s = monotonic_s()
    until_s = begun_s + within_s
    decision, _ = decide_now(request, "waiting")
    if decision.verdict is not Verdict.WAIT or monotonic_s() >= until_s:
        return decision
    if is_terminal():
        say(f"waiting, without a place in the queue: {in_words(decision)}; Ctrl-C stops")
    readings = FurtherReadings()
    limit = "" if within_s == math.inf else f" of {span(within_s)}"
    try:
        while decision.verdict is Verdict.WAIT and monotonic_s() < until_s:
            time.sleep(min(_LOOK_EVERY_S, max(0.0, until_s - monotonic_s())))
            # In this process, where it takes a tenth of the time that a process for it would.
            inventory = probe.finish(probe.start_in_process(os.environ, request.inventory))
            # A driver that fails is no reason to end after hours: the reading before stands. GPUs may be gone.
            if readings.counts(inventory, decision) and not inventory.failure:
                request = replace(request, inventory=inventory)
            decision, _ = decide_now(request, "waiting")
            _write_again(f"autogpu: {span(monotonic_s() - begun_s)}{limit}: {in_words(decision)}")
    finally:
        _write_again("")
    return decision


def _write_again(line: str) -> None:
    """Show a line in place of the one before, where a person sees it."""
    if is_terminal():
        from rich.console import Console
        from rich.text import Text

        shown = Text(line)
        shown.truncate(Console(stderr=True).width - 1, overflow="crop")
        # In one piece: a line that Ctrl-C cuts in two would stand there twice.
        click.echo(f"\r\x1b[2K{shown.plain}", nl=False, err=True)
