"""The meaning of ``CUDA_VISIBLE_DEVICES``, who set it, and what to write there. Pure.

The GPUs that it names are the pool: choosing happens inside it, and it is never widened.
"""

from __future__ import annotations

from typing import Mapping, MutableMapping, Sequence

from autogpu.devices.enumeration import hides_all
from autogpu.devices.model import Device, Inventory
from autogpu.frozen import Value
from autogpu.selection.grants import NO_ENGINE, Grant, is_engine_worker
from autogpu.selection.model import Cause, Ranking, VisibleSpec
from autogpu.variables import (
    CUDA_DEVICE_ORDER,
    CUDA_VISIBLE_DEVICES,
    ORIGINAL_VISIBLE_DEVICES,
    PCI_ORDER,
    WRITTEN_VISIBLE_DEVICES,
)


class InitialVisibility(Value):
    """``CUDA_VISIBLE_DEVICES`` as the interpreter found it.

    Attributes:
        inherited: Its value before an autogpu in an ancestor rewrote it; ``None`` if it was not set.
        is_written: An autogpu in an ancestor did so, be it with the same text.
    """

    value: str | None
    inherited: str | None
    is_written: bool = False


def initial_visibility(environ: Mapping[str, str], started_with: str | None) -> InitialVisibility:
    """See :class:`InitialVisibility`; ``environ`` as it was before this process changed it."""
    if started_with is not None and started_with == environ.get(WRITTEN_VISIBLE_DEVICES):
        return InitialVisibility(started_with, environ.get(ORIGINAL_VISIBLE_DEVICES), is_written=True)
    return InitialVisibility(started_with, started_with)


def visible_spec(
    environ: Mapping[str, str], initial: InitialVisibility, script: str = "respect", grant: Grant = NO_ENGINE
) -> VisibleSpec:
    """Tell what a ``script``, as ``select.script`` allows, hard-codes in ``environ`` from what it inherited."""
    now = environ.get(CUDA_VISIBLE_DEVICES)
    if is_engine_worker(environ) or now == initial.value:
        # A worker's engine sets the variable after the interpreter's start; the script has no part in that.
        value = initial.inherited if now == initial.value else now
        return VisibleSpec(grant.visible if value is None else value)
    # A script that hides every GPU wants none of them; there is no other one to have instead.
    if script == "override" and not hides_all(now):
        return VisibleSpec(initial.inherited, overridden="(unset)" if now is None else now)
    return VisibleSpec(now, is_scripts=now is not None)


def device_order(environ: Mapping[str, str], spec: VisibleSpec, grant: Grant) -> str | None:
    """``CUDA_DEVICE_ORDER`` by which the numbers of ``spec`` are meant."""
    return PCI_ORDER if grant.counts_by_bus and not spec.is_scripts else environ.get(CUDA_DEVICE_ORDER)


def restore(environ: MutableMapping[str, str], value: str | None, name: str = CUDA_VISIBLE_DEVICES) -> None:
    """Put a variable back to ``value``; ``None`` for one that was not set."""
    if value is None:
        environ.pop(name, None)
    else:
        environ[name] = value


def pool_in_order(ranking: Ranking, *, count: int | None = None, kept_order: Sequence[str] = ()) -> tuple[Device, ...]:
    """The GPUs of the pool as ``CUDA_VISIBLE_DEVICES`` is to list them: idlest first, none that the policy excludes.

    Args:
        kept_order: UUIDs in the order to keep instead, for processes that count the pool's GPUs among themselves.
    """
    devices = [candidate.device for candidate in ranking.candidates]
    if count is not None:
        return tuple(devices[:count])
    # A GPU that can't be taken now stays addressable: without us the script would see it, too.
    devices += [r.device for r in ranking.rejected if r.cause is not Cause.EXCLUDED_BY_POLICY]
    number = {uuid: number for number, uuid in enumerate(kept_order)}
    # What a framework leaves out comes last, so that it counts the others as CUDA does.
    small = [r.device for r in ranking.rejected if r.cause is Cause.TOO_SMALL]
    return tuple(sorted(devices, key=lambda device: (device in small, number.get(device.uuid, len(number)))))


def _has_cudas_indices(inventory: Inventory) -> bool:
    """NVML's indices are also CUDA's under ``PCI_BUS_ID``, but not with a GPU lost, or a card in MIG mode."""
    return not (inventory.unreadable or inventory.denied or any(device.mig_enabled for device in inventory.devices))


def environment_for(
    devices: Sequence[Device], spec: VisibleSpec, inventory: Inventory | None = None, identifier: str = "uuid"
) -> dict[str, str]:
    """The variables that list ``devices`` instead of what ``spec`` says; without any they hide every GPU.

    The two beside ``CUDA_VISIBLE_DEVICES`` tell an autogpu in a child what was there before.
    """
    written = {CUDA_VISIBLE_DEVICES: ",".join(device.uuid for device in devices) or "-1"}
    if devices and identifier == "index" and inventory and _has_cudas_indices(inventory):
        numbers = ",".join(str(device.index) for device in devices)
        written = {CUDA_VISIBLE_DEVICES: numbers, CUDA_DEVICE_ORDER: PCI_ORDER}
    written[WRITTEN_VISIBLE_DEVICES] = written[CUDA_VISIBLE_DEVICES]
    if spec.value is not None:
        written[ORIGINAL_VISIBLE_DEVICES] = spec.value
    return written


def best_kind_first(devices: Sequence[Device]) -> tuple[Device, ...]:
    """Whole cards and instances apart, those of the best one's kind first: CUDA reads the first kind alone."""
    return tuple(sorted(devices, key=lambda device: (device.parent is None) != (devices[0].parent is None)))
