"""The GPUs of this machine, and a request for some of them: for ``pick``, ``wait`` and ``run --hold``."""

from __future__ import annotations

import os
from typing import Mapping, Sequence

from autogpu.devices import probe
from autogpu.devices.model import Device, Inventory
from autogpu.errors import AutoGpuError, DriverUnavailable
from autogpu.policy import Policy, Resolved
from autogpu.policy.model import with_options
from autogpu.process import unix_s
from autogpu.reporting.stderr import say
from autogpu.reporting.text import printable
from autogpu.selection import explain
from autogpu.selection.members import Family, preview
from autogpu.selection.model import Decision, SelectionRequest, VisibleSpec
from autogpu.selection.ranking import unmatched_lists
from autogpu.selection.visible_devices import environment_for
from autogpu.status.snapshot import read_leases, request_here
from autogpu.variables import CUDA_DEVICE_ORDER, CUDA_VISIBLE_DEVICES


class NoDriver(DriverUnavailable):
    """This is a machine without NVIDIA GPUs."""


def listing(devices: Sequence[Device], policy: Policy, inventory: Inventory | None) -> dict[str, str]:
    """The variables that list ``devices`` for a program that is not Python, as ``select.identifier`` says."""
    written = environment_for(devices, VisibleSpec(), inventory, policy.identifier)
    return {name: written[name] for name in (CUDA_DEVICE_ORDER, CUDA_VISIBLE_DEVICES) if name in written}


def request_gpus(resolved: Resolved, environ: Mapping[str, str], own_pid: int | None = None) -> SelectionRequest:
    """The request of a process that could see all GPUs of the pool, which is not empty, in the pool's order.

    An error says why there is none, :class:`NoDriver` that there are no GPUs.
    """
    inventory = probe.finish(probe.start(os.environ))
    if inventory.has_no_driver:
        raise NoDriver("no NVIDIA driver on this machine", remedy="start the program without autogpu")
    if inventory.failure:
        raise DriverUnavailable(printable(inventory.failure), remedy=inventory.remedy)
    request = request_here(resolved, inventory, environ, own_pid)
    if request.grant.is_none:
        raise AutoGpuError(request.grant.why, remedy=request.grant.remedy)
    if not inventory.devices:
        raise DriverUnavailable(explain.no_device(inventory), remedy="`nvidia-smi` should report the same")
    value = printable(str(request.visible_spec.value))
    if request.uuids is None:
        what = f"which GPUs CUDA_VISIBLE_DEVICES={value} means only the CUDA driver can tell"
        remedy = "name them by UUID"
        if inventory.unreadable:
            what += f" while {explain.gpu_names(lost.index for lost in inventory.unreadable)} can't be read"
        else:
            remedy += ", or set CUDA_DEVICE_ORDER=PCI_BUS_ID"
        raise AutoGpuError(what, remedy=remedy)
    if not request.uuids:
        raise AutoGpuError(f"CUDA_VISIBLE_DEVICES={value} hides every GPU", remedy="unset it")
    for line in unmatched_lists(resolved, inventory, request.visible_spec):
        say(line)
    return request


def in_words(decision: Decision) -> str:
    """Why it was decided so, with the command's options, as a terminal may show it."""
    return printable(with_options(decision.why), 2000)


def decide_now(request: SelectionRequest, doing: str) -> tuple[Decision, Family | None]:
    """Decide beside the jobs of this moment, and tell to which of them a process started here belongs.

    ``doing`` begins what is said where the claims of the others can't be read.
    """
    read = read_leases(os.environ, request.inventory.devices)
    if read.problem:
        say(f"{doing} without regard to the claims of other jobs: {read.problem}")
    return preview(request, read.leases, read.processes, unix_s(), read.family), read.family
