"""A granted part of a GPU as a GPU of its own, of which other jobs than the engine's have nothing. Pure."""

from __future__ import annotations

from typing import Mapping, Sequence

from autogpu.devices.model import Device, Inventory, Process
from autogpu.frozen import replace
from autogpu.selection.grants import Grant
from autogpu.selection.model import Claim


def claims_in_part(grant: Grant, claims_on: Mapping[str, Sequence[Claim]]) -> Mapping[str, Sequence[Claim]]:
    """Return the claims of processes with the same grant, keyed by GPU UUID."""
    return {
        uuid: [claim for claim in claims if claim.engine_job == grant.job and grant.job]
        for uuid, claims in claims_on.items()
    }


def parts_of(
    inventory: Inventory, fraction: float, claims_on: Mapping[str, Sequence[Claim]], own_pid: int | None
) -> Inventory:
    """Return the readings of the parts, each ``fraction`` of a GPU.

    Args:
        claims_on: As :func:`claims_in_part` returns them.
    """
    devices = [_part_of(device, fraction, claims_on.get(device.uuid, ()), own_pid) for device in inventory.devices]
    return replace(inventory, devices=devices)


def _part_of(device: Device, fraction: float, claims: Sequence[Claim], own_pid: int | None) -> Device:
    if device.memory_total_bytes is None:
        return device
    processes = _processes_in_part(device, claims, own_pid)
    is_used = any(each.pid != own_pid for each in processes or ())
    return replace(
        device,
        memory_total_bytes=int(device.memory_total_bytes * fraction),
        memory_used_bytes=sum(each.memory_used_bytes or 0 for each in processes or ()),
        # The driver does not tell which part computes.
        utilization_percent=device.utilization_percent if is_used else 0,
        compute_processes=processes,
        graphics_processes=(),
    )


def _processes_in_part(device: Device, claims: Sequence[Claim], own_pid: int | None) -> tuple[Process, ...] | None:
    """Return this process and those with the claims, as far as they use the GPU; ``None`` if that is unknown."""
    if device.compute_processes is None:
        return None
    pids = {own_pid, *(pid for claim in claims for pid in claim.pids)}
    return tuple(each for each in device.compute_processes if each.pid in pids)
