"""CUDA's numbering of a process's GPUs, derived from ``CUDA_VISIBLE_DEVICES``. No function here calls a driver.

The rules for MIG instances are those of NVIDIA's MIG user guide (docs.nvidia.com/datacenter/tesla/mig-user-guide, CUDA
Device Enumeration). Before driver R570, CUDA shows a process only one instance, the first of its list, and no whole
card with it. From R570 on, CUDA shows one compute instance of each GPU instance, and whole cards as well. The guide
does not describe a list with both cards and instances.
"""

from __future__ import annotations

import re
from itertools import takewhile
from typing import Iterable, Sequence

from autogpu.devices.model import Device, Inventory, by_uuid
from autogpu.variables import PCI_ORDER

_PREFIXES = ("GPU-", "MIG-")


def named_uuids(value: str | None, inventory: Inventory, order: str | None) -> tuple[str, ...] | None:
    """Return the UUIDs of the GPUs in a value of ``CUDA_VISIBLE_DEVICES``; ``None`` if only the driver can resolve it.

    The rules are those of NVIDIA's CUDA programming guide (appendix on environment variables). The first invalid entry
    ends the list. A repeated GPU empties the list. A unique prefix of a UUID is enough. A list has indices or UUIDs,
    but not both. A card in MIG mode stands for its instances. If an entry begins with ``gpu-`` or
    ``mig-`` in lower case, only the driver can resolve the list.

    Args:
        value: ``None`` means every GPU.
        order: ``CUDA_DEVICE_ORDER``. By default CUDA puts the fastest GPU first, by its own rule. So an index is
            certain only with ``PCI_BUS_ID``, or if all GPUs are of one model.
    """
    if value is None:
        return tuple(device.uuid for device in takeable(inventory.devices))
    entries = [entry.strip() for entry in value.split(",")]
    is_by_uuid = entries[0][:4].upper() in _PREFIXES
    named = _named_by_uuid(entries, inventory.devices) if is_by_uuid else _named_by_index(entries, inventory, order)
    return None if named is None else tuple(device.uuid for device in _as_cuda_shows(named, inventory))


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
    called = [device for device in devices if is_called(device, entry)]
    if called or not entry.startswith("MIG-"):
        return called
    if entry.startswith("MIG-GPU-"):
        return None  # an older form of names, which drivers also accept
    # The instances of a card in MIG mode may be unreadable. Then the entry may be one of them.
    return None if any(device.mig_enabled for device in takeable(devices)) else called


def _named_by_index(entries: Sequence[str], inventory: Inventory, order: str | None) -> list[Device] | None:
    devices = _as_cuda_counts(inventory.devices)
    known = range(len(devices) + len(inventory.unreadable))
    found = list(takewhile(lambda index: index in known, map(_index, entries)))
    if not found or len(set(found)) < len(found):
        return []
    is_one_model = len({device.name for device in devices}) == 1
    # NVIDIA does not document how CUDA numbers the instances that it shows since R570.
    is_uncertain = has_instances(inventory.devices) and shows_several(inventory)
    if inventory.unreadable or is_uncertain or not (order == PCI_ORDER or is_one_model):
        return None
    return [devices[index] for index in found]


def _index(entry: str) -> int:
    """Return the number that C's ``strtol`` reads in an entry; -1 if it can't be the index of a GPU."""
    number = re.match("[+]?0*([0-9]+)|-0+(?![0-9])", entry)
    digits = (number.group(1) or "0") if number else "-1"
    return int(digits) if len(digits) < 10 else -1


def _as_cuda_counts(devices: Sequence[Device]) -> tuple[Device, ...]:
    """Return the cards in the order of CUDA's indices before R570: whole cards first, then cards with instances."""
    # Source: observed on eight A100 with driver 550 (github.com/DataDog/datadog-agent, pkg/gpu/cuda/env_test.go).
    split = {device.parent for device in devices}
    whole = tuple(device for device in cards(devices) if not device.mig_enabled)
    return whole + tuple(device for device in devices if device.uuid in split)


def _as_cuda_shows(named: Sequence[Device], inventory: Inventory) -> tuple[Device, ...]:
    """Return the GPUs that CUDA shows for a list: instances replace their card, and before R570 hide whole cards."""
    shown: dict[str, Device] = {}
    for device in named:
        of_card = [each for each in inventory.devices if each.parent == device.uuid]
        shown.update({each.uuid: each for each in of_card or [device]})
    if has_instances(shown.values()) and not shows_several(inventory):
        return tuple(device for device in shown.values() if device.parent is not None)
    return tuple(shown.values())


def hides_all(value: str | None) -> bool:
    """True if a value of ``CUDA_VISIBLE_DEVICES`` hides all GPUs of any machine: ``""``, ``-1``, ``NoDevFiles``."""
    first = "0" if value is None else value.split(",")[0].strip()
    return first[:4].upper() not in _PREFIXES and _index(first) < 0


def takeable(devices: Iterable[Device]) -> tuple[Device, ...]:
    """Return the GPUs that a process can use: all instances, and the cards without instances."""
    devices = tuple(devices)
    split = {device.parent for device in devices}
    return tuple(device for device in devices if device.uuid not in split)


def cards(devices: Iterable[Device]) -> tuple[Device, ...]:
    return tuple(device for device in devices if device.parent is None)


def has_instances(devices: Iterable[Device]) -> bool:
    return any(device.parent is not None for device in devices)


def is_called(device: Device, name: str) -> bool:
    """True if the device's UUID begins with ``name``, such as ``GPU-5d0f`` or ``MIG-0a1b``, in upper or lower case."""
    return bool(name) and device.uuid.lower().startswith(name.lower())


def shows_several(inventory: Inventory) -> bool:
    """True if CUDA shows a process several instances, and whole cards with them (from driver R570 on)."""
    major = re.match("[0-9]{1,9}", inventory.driver_version or "")
    return major is not None and int(major.group()) >= 570


def named_by_nvml(counted: Sequence[str], devices: Iterable[Device]) -> tuple[str, ...]:
    """Return NVML's UUIDs for UUIDs of the CUDA driver, which does not use the prefix ``MIG-`` for instances."""
    names = {"GPU-" + device.uuid[4:]: device.uuid for device in devices if device.parent is not None}
    return tuple(names.get(uuid, uuid) for uuid in counted)


def counted_by_framework(uuids: Sequence[str], count: int, devices: Sequence[Device]) -> Sequence[str]:
    """Return the UUIDs of the GPUs that a framework uses, given how many it uses.

    A framework leaves out small cards. If all GPUs after the first ``count`` are small, it uses the first ``count``.
    Else the result is ``uuids``.
    """
    known = by_uuid(devices)
    behind = [known.get(uuid) for uuid in uuids[count:]]
    return uuids[:count] if count and all(device and device.is_small for device in behind) else uuids
