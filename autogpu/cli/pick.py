"""``autogpu pick`` prints the GPUs to use, for shell scripts and containers. It claims nothing."""

from __future__ import annotations

import os
from typing import Mapping, Sequence

import click

from autogpu.cli.request import NoDriver, decide_now, in_words, policy_options, request_gpus, resolve_flags
from autogpu.devices.model import Device
from autogpu.errors import EXIT_TRY_AGAIN, AutoGpuError
from autogpu.frozen import replace
from autogpu.policy.model import Resolved, with_options
from autogpu.reporting import choice
from autogpu.reporting.gpus import each_gpu, labels
from autogpu.selection.decision import Decision, Verdict
from autogpu.selection.members import Family
from autogpu.selection.model import SelectionRequest
from autogpu.stderr import say
from autogpu.text import printable, with_notes
from autogpu.variables import CUDA_VISIBLE_DEVICES


@click.command(
    epilog="""Exit status: 0 if GPUs were printed, or if you ask for none (--count 0, --busy cpu); 1 if no GPU may be
used; 75 if no GPU is free now and the policy would wait, or if no GPU has the memory of --need left.

\b
Examples:
  eval "$(autogpu pick --count 2)"
  autogpu pick --need 6GiB
  docker run --gpus "$(autogpu pick --format docker)" nvidia/cuda nvidia-smi"""
)
@policy_options("select", "memory")
@click.option(
    "--format",
    "form",
    type=click.Choice(("export", "uuid", "index", "docker")),
    default="export",
    show_default=True,
    help="Print a line for eval, UUIDs or nvidia-smi indices (separated by commas), or a value for docker's --gpus.",
)
@click.option("--explain", "is_explained", is_flag=True, help="Print on stderr why the other GPUs were not picked.")
def pick(flags: Mapping[str, str], form: str, is_explained: bool) -> int:
    """Print GPUs to use now, for programs that autogpu can't reach.

    This command claims nothing: another job may take the GPUs before your program does. `autogpu run --hold -- command`
    claims GPUs until the command ends.
    """
    resolved = _resolve(flags)
    if resolved.policy.count == 0:
        return _pick_none(choice.COUNT_IS_ZERO, form)
    try:
        request = request_gpus(resolved, os.environ, without_driver="if the program can use the CPU: --busy cpu")
    except NoDriver as error:
        if resolved.policy.busy != "cpu":
            raise
        return _pick_none(error.what, form)
    decision, family = decide_now(request, "picking")
    status = _print_decision(decision, family, form, request)
    if is_explained:
        for line in each_gpu(decision, decision.devices, "picked"):
            say(line)
    return status


def _resolve(flags: Mapping[str, str]) -> Resolved:
    """Return the policy; with ``--need``, it allows only a GPU that has the need now.

    Raises:
        click.UsageError: The option ``--busy wait`` is set, but pick does not wait.
    """
    resolved = resolve_flags(flags)
    if "busy" in flags and resolved.policy.busy == "wait":
        raise click.UsageError(
            "--busy wait: pick does not wait; to wait for free GPUs: `autogpu wait`; to claim them too: "
            "`autogpu run --hold --busy wait -- command`"
        )
    if "need" in flags and "busy" not in flags:
        # With "wait", autogpu picks only a GPU that has this memory left. So the exit status shows if there is one.
        return replace(resolved, policy=replace(resolved.policy, busy="wait"))
    return resolved


def _print_decision(decision: Decision, family: Family | None, form: str, request: SelectionRequest) -> int:
    if decision.verdict is Verdict.CPU and request.policy.busy == "cpu":
        return _pick_none(choice.why(decision), form)
    if decision.verdict is not Verdict.TAKE:
        say(_without_gpu(in_words(decision)))
        return EXIT_TRY_AGAIN if decision.verdict is Verdict.WAIT else 1
    click.echo(_formatted(decision.devices, form))
    is_held = family is not None and all(family.held.get(device.uuid) for device in decision.devices)
    held = "reserved by your job" if is_held else "not reserved"
    picked = f"picked {labels(decision.devices)} ({held}): {choice.reason(decision)}"
    for line in with_notes([picked], choice.notes(decision)):
        say(with_options(line))
    return 0


def _pick_none(why: str, form: str) -> int:
    """Print a value of ``CUDA_VISIBLE_DEVICES`` that hides every GPU, because the policy asks for the CPU.

    Raises:
        AutoGpuError: The format is for docker, whose ``--gpus`` has no such value.
    """
    if form == "docker":
        raise AutoGpuError(_without_gpu(why), remedy="start the container without --gpus")
    click.echo("export CUDA_VISIBLE_DEVICES=-1" if form == "export" else "-1")
    say(_without_gpu(why))
    return 0


def _without_gpu(why: str) -> str:
    return printable(why if why.startswith("no GPU") else f"picked no GPU: {why}", 2000)


def _formatted(taken: Sequence[Device], form: str) -> str:
    uuids = ",".join(device.uuid for device in taken)
    if form == "export":
        return f"export {CUDA_VISIBLE_DEVICES}={uuids}"
    if form == "docker":
        # Docker parses the value as CSV. Without the inner quotes, it would read the second GPU as another option.
        return f'"device={uuids}"'
    return uuids if form == "uuid" else ",".join(device.label for device in taken)
