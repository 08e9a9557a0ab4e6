"""The meaning of ``CUDA_VISIBLE_DEVICES``, who set it, and what to write there. Pure.

The GPUs that it names are the pool: choosing happens inside it, and it is never widened.
"""

from __future__ import annotations

import re
from itertools import takewhile
from typing import Mapping, MutableMapping, Sequence

from autogpu.devices.model import Device, Inventory, by_uuid
from autogpu.frozen import Value
from autogpu.selection import instances
from autogpu.selection.grants import NO_ENGINE, Grant, is_engine_worker
from autogpu.selection.model import Cause, Ranking, VisibleSpec
from autogpu.variables import (
    CUDA_DEVICE_ORDER,
    CUDA_VISIBLE_DEVICES,
    ORIGINAL_VISIBLE_DEVICES,
    PCI_ORDER,
    WRITTEN_VISIBLE_DEVICES,
)

_PREFIXES = ("GPU-", "MIG-")


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


def hides_all(value: str | None) -> bool:
    """A value of ``CUDA_VISIBLE_DEVICES`` means no GPU on any machine: ``""``, ``-1``, ``NoDevFiles``."""
    first = "0" if value is None else value.split(",")[0].strip()
    return first[:4].upper() not in _PREFIXES and _index(first) < 0


def restore(environ: MutableMapping[str, str], value: str | None, name: str = CUDA_VISIBLE_DEVICES) -> None:
    """Put a variable back to ``value``; ``None`` for one that was not set."""
    if value is None:
        environ.pop(name, None)
    else:
        environ[name] = value


def named_uuids(value: str | None, inventory: Inventory, order: str | None) -> tuple[str, ...] | None:
    """The UUIDs that a value of ``CUDA_VISIBLE_DEVICES`` names, in its order; ``None`` if only the driver can tell.

    The rules are those of NVIDIA's CUDA programming guide (appendix on environment variables): the first invalid
    entry ends the list, a repeated GPU empties it, a UUID may be cut to a unique prefix, kinds are not mixed. A card in
    MIG mode stands for its instances. A prefix in lower case is left to the driver.

    Args:
        value: ``None`` means every GPU.
        order: ``CUDA_DEVICE_ORDER``. By default CUDA counts the fastest GPU first, by a rule of its own, so an index
            is certain only with ``PCI_BUS_ID`` or where all GPUs are of one model.
    """
    if value is None:
        return tuple(device.uuid for device in instances.takeable(inventory.devices))
    entries = [entry.strip() for entry in value.split(",")]
    is_by_uuid = entries[0][:4].upper() in _PREFIXES
    named = _named_by_uuid(entries, inventory.devices) if is_by_uuid else _named_by_index(entries, inventory, order)
    return None if named is None else tuple(device.uuid for device in instances.as_cuda_shows(named, inventory))


def _named_by_uuid(entries: Sequence[str], devices: Sequence[Device]) -> list[Device] | None:
    found: list[Device] = []
    for entry in entries:
        called = _called(entry, devices)
        if called is None:
            return None
        if len(called) != 1:
            break
        if called[0] in found:
            return []
        found += called
    return found


def _called(entry: str, devices: Sequence[Device]) -> list[Device] | None:
    if not entry.startswith(_PREFIXES):
        return None if entry[:4].upper() in _PREFIXES else []
    called = [device for device in devices if instances.is_called(device, entry)]
    # The instances of a card may be those that could not be read; and drivers read also an older kind of name.
    is_unread = entry.startswith("MIG-") and any(device.mig_enabled for device in instances.takeable(devices))
    return None if (is_unread or entry.startswith("MIG-GPU-")) and not called else called


def _index(entry: str) -> int:
    """The index that C's ``strtol`` makes of it; -1 where it can be none of a GPU."""
    number = re.match("[+]?0*([0-9]+)|-0+(?![0-9])", entry)
    digits = (number.group(1) or "0") if number else "-1"
    return int(digits) if len(digits) < 10 else -1


def _named_by_index(entries: Sequence[str], inventory: Inventory, order: str | None) -> list[Device] | None:
    devices = instances.as_cuda_counts(inventory.devices)
    known = range(len(devices) + len(inventory.unreadable))
    found = list(takewhile(lambda index: index in known, map(_index, entries)))
    if not found or len(set(found)) < len(found):
        return []
    is_one_model = len({device.name for device in devices}) == 1
    # How CUDA numbers the instances that it shows since R570 is nowhere said.
    is_uncertain = instances.are_among(inventory.devices) and instances.shows_several(inventory.driver_version)
    if inventory.unreadable or is_uncertain or not (order == PCI_ORDER or is_one_model):
        return None
    return [devices[index] for index in found]


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


def counted_by_framework(uuids: Sequence[str], count: int, devices: Sequence[Device]) -> Sequence[str]:
    """Of the GPUs that CUDA counts those of a framework that has ``count`` of them: all before the small cards."""
    known = by_uuid(devices)
    behind = [known.get(uuid) for uuid in uuids[count:]]
    return uuids[:count] if count and all(device and device.is_small for device in behind) else uuids


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
