"""Requests for GPUs on the command line: options for the policy's keys, and the decision on a request."""

from __future__ import annotations

import os
from typing import Any, Callable, Mapping, Sequence

import click

from autogpu import policy
from autogpu.devices import probe
from autogpu.errors import AutoGpuError, DriverUnavailable
from autogpu.policy import KEYS, Resolved, kinds
from autogpu.policy.model import LayerName, with_options
from autogpu.process import unix_s
from autogpu.reporting import policy as policy_messages
from autogpu.reporting.choice import why
from autogpu.reporting.engines import denial
from autogpu.reporting.gpus import driver_remedy, gpu_names, no_device
from autogpu.reporting.mistakes import policy_problem, what_is_wrong
from autogpu.selection.decision import Decision, Verdict
from autogpu.selection.members import Family
from autogpu.selection.model import SelectionRequest
from autogpu.status.preview import preview
from autogpu.status.snapshot import read_leases, request_here
from autogpu.stderr import say
from autogpu.text import printable


def duration(text: str) -> object:
    """Convert the value of an option, a duration such as ``30m`` or ``2h30m``, to seconds.

    Raises:
        click.BadParameter: The text is not a duration.
    """
    try:
        return kinds.DURATION.read(text)
    except kinds.Refused:
        raise click.BadParameter(f"can't be {kinds.quoted(text)}; allowed: {kinds.DURATION.allowed}") from None


def policy_options(*sections: str, without: Sequence[str] = ()) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add an option to a command for each policy key of ``sections``; pass their values as one mapping, ``flags``.

    Args:
        without: Names of keys that get no option.
    """
    keys = [k for k in KEYS if k.section in sections and not k.system_only and k.name not in without]

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for key in reversed(keys):
            command = click.option(
                key.flag,
                key.name,
                metavar="VALUE",
                help=f"{key.dotted}: {' '.join(key.about.split())}",
                expose_value=False,
                multiple=isinstance(key.default, tuple),  # --exclude 0 --exclude 3 is --exclude 0,3
                callback=_note,
                shell_complete=_completing(key.kind.words),
            )(command)
        return command

    return add


def _note(ctx: click.Context, param: click.Parameter, given: str | tuple[str, ...] | None) -> None:
    flags = ctx.params.setdefault("flags", {})
    text = ",".join(given) or None if isinstance(given, tuple) else given
    if text is not None:
        flags[param.name] = text


def _completing(words: Sequence[str]) -> Callable[..., list[str]]:
    # Don't use click.Choice: a wrong value has to have the same message in a file, a variable and an option.
    return lambda ctx, param, incomplete: [word for word in words if word.startswith(incomplete)]


def resolve_here(flags: Mapping[str, str]) -> Resolved:
    return policy.resolve(os.environ, script=None, working_directory=policy.working_directory(), flags=flags)


def resolve_flags(flags: Mapping[str, str]) -> Resolved:
    """Return the policy with these options, and print its mistakes.

    Raises:
        click.UsageError: A mistake is in an option.
    """
    resolved = resolve_here(flags)
    for problem in resolved.problems:
        if problem.origin.layer is LayerName.COMMAND_LINE:
            raise click.UsageError(with_options(what_is_wrong(problem)))
        say(policy_problem(problem))
    return resolved


class NoDriver(DriverUnavailable):
    """The machine has no NVIDIA driver."""


def request_gpus(
    resolved: Resolved, environ: Mapping[str, str], *, without_driver: str, own_pid: int | None = None
) -> SelectionRequest:
    """Return the request for a process that would see every GPU that the policy and the environment allow.

    Args:
        without_driver: The remedy to print if the machine has no NVIDIA driver.

    Raises:
        NoDriver: The machine has no NVIDIA driver.
        AutoGpuError: The process would see no GPU for another reason.
    """
    inventory = probe.finish(probe.start(os.environ))
    if inventory.has_no_driver:
        raise NoDriver("this machine has no NVIDIA driver", remedy=without_driver)
    if inventory.failure:
        raise DriverUnavailable(printable(inventory.failure), remedy=driver_remedy(inventory))
    request = request_here(resolved, inventory, environ, own_pid)
    if request.grant.is_none:
        what, remedy = denial(request.grant)
        raise AutoGpuError(what, remedy=remedy)
    if not inventory.devices:
        raise DriverUnavailable(no_device(inventory), remedy=driver_remedy(inventory))
    value = printable(str(request.visible_spec.value))
    if request.uuids is None:
        what = f"can't tell which GPUs CUDA_VISIBLE_DEVICES={value} selects"
        remedy = "list the GPUs by UUID"
        if inventory.unreadable:
            what += f" while {gpu_names(lost.index for lost in inventory.unreadable)} can't be read"
        else:
            remedy += ", or set CUDA_DEVICE_ORDER=PCI_BUS_ID"
        raise AutoGpuError(what, remedy=remedy)
    if not request.uuids:
        raise AutoGpuError(f"CUDA_VISIBLE_DEVICES={value} hides every GPU", remedy="unset it")
    for line in policy_messages.unmatched(resolved, inventory, request.visible_spec):
        say(line)
    return request


def in_words(decision: Decision) -> str:
    """Return the reason for the decision, with options in place of variables. The text is safe for a terminal."""
    return printable(with_options(why(decision)), 2000)


def decide_now(request: SelectionRequest, doing: str, looks: int = 2) -> tuple[Decision, Family | None]:
    """Return the decision given the present jobs, and the job to which a process started here would belong.

    Args:
        doing: First words of the warning that is printed if the leases can't be read.
        looks: How many times to read the leases before a decision to take a GPU counts.
    """
    read = read_leases(os.environ, request.inventory.devices)
    if read.problem:
        say(f"{doing} without the claims of other jobs, which can't be read: {read.problem}")
    decision = preview(request, read.leases, read.processes, unix_s(), read.family)
    # Read the leases twice. A waiting job that gets a GPU replaces its ticket by a lease. A reading that has listed the
    # folder just before finds neither: the lease is not in its list, and the ticket is gone.
    if decision.verdict is Verdict.TAKE and looks > 1:
        return decide_now(request, doing, looks - 1)
    return decision, read.family
