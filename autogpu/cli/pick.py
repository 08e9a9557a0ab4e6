"""``autogpu pick``: the GPUs to use, for shell scripts and containers. Nothing is held."""

from __future__ import annotations

import os
import time

import click

from autogpu import report, selection
from autogpu.claiming import awaited_by, leases_of
from autogpu.cli import choosing, reading
from autogpu.decision import Verdict, decide
from autogpu.stderr import say, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, Sequence

    from autogpu.devices.model import Device

FORMATS = ("export", "uuid", "index", "docker")


@click.command(
    epilog="""Exit status: 0 if there is one, 1 if none may be used, 75 if none is free now and the policy would wait.

\b
Examples:
  eval "$(autogpu pick --count 2)"
  docker run --gpus "$(autogpu pick --format docker)" nvidia/cuda nvidia-smi"""
)
@choosing.policy_flags("select")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="export",
    show_default=True,
    help="A line for eval, UUIDs or indices (of nvidia-smi) with commas between them, or what docker's --gpus takes.",
)
@click.option("--explain", is_flag=True, help="Say on stderr why not the others.")
def pick(flags: Mapping[str, str], form: str, explain: bool) -> int:
    """Print which GPUs to use at this moment, for programs that autogpu can't reach.

    Nothing is held: another job may take them before your program does. `autogpu run --hold -- command`
    holds them for as long as the command runs.
    """
    resolved = reading.resolve(os.environ, flags)
    choosing.check(resolved)
    inventory = choosing.read()
    question = choosing.question(resolved, inventory, os.environ, own_pid=None)
    host = reading.host(os.environ)
    if host.problem:
        say(f"picking without regard to the claims of other jobs: {host.problem}")
    leases = leases_of(host.holders, host.pids_here, inventory, time.time())
    decision = decide(question, leases, awaited_by([waiter for waiter in host.waiters if not waiter.is_passed_over]))
    if decision.verdict is Verdict.TAKE:
        click.echo(_written(decision.devices, form))
        say(f"{selection.names(decision.devices)} picked, not held: {shown(decision.why)}")
    else:
        say(shown(decision.why if decision.why.startswith("no GPU") else f"no GPU: {decision.why}"))
    if explain:
        for line in report.explain(decision.ranking, decision.devices, inventory.unreadable, "picked"):
            say(shown(line))
    if decision.verdict in (Verdict.WAIT, Verdict.REFUSE):
        return choosing.EXIT_LATER
    return 0 if decision.verdict is Verdict.TAKE else 1


def _written(taken: Sequence[Device], form: str) -> str:
    uuids = ",".join(device.uuid for device in taken)
    if form == "export":
        return f"export CUDA_VISIBLE_DEVICES={uuids}"
    if form == "docker":
        # Docker reads the value as CSV: without quotes of its own the second GPU would be another option.
        return f'"device={uuids}"'
    return uuids if form == "uuid" else ",".join(str(device.index) for device in taken)
