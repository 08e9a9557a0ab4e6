"""MIG instances among the GPUs: which of them one process can have, and by which names they are known. Pure.

The rules are those of NVIDIA's MIG user guide (docs.nvidia.com/datacenter/tesla/mig-user-guide, CUDA Device
Enumeration): before driver R570 CUDA shows a process one instance, the first of its list, and no whole card beside it;
from R570 on it shows one compute instance of each GPU instance, and whole cards as well, so that a script counts on
them. Whether one list may name both is nowhere said: the kind of the best one is listed first, which CUDA reads anyway.
"""

from __future__ import annotations

import re
from typing import Iterable, Sequence

from autogpu.devices.model import Device, Inventory


def takeable(devices: Iterable[Device]) -> tuple[Device, ...]:
    """The GPUs that a process can have: instances instead of the card that they are of."""
    devices = tuple(devices)
    split = {device.parent for device in devices}
    return tuple(device for device in devices if device.uuid not in split)


def cards(devices: Iterable[Device]) -> tuple[Device, ...]:
    """Those that are no instances."""
    return tuple(device for device in devices if device.parent is None)


def are_among(devices: Iterable[Device]) -> bool:
    """One of them is an instance."""
    return any(device.parent is not None for device in devices)


def as_cuda_counts(devices: Sequence[Device]) -> tuple[Device, ...]:
    """The cards by the numbers that a list may have before R570: whole ones first, then those that have instances."""
    # Source: what was seen on eight A100 with driver 550 (github.com/DataDog/datadog-agent, pkg/gpu/cuda/env_test.go).
    split = {device.parent for device in devices}
    whole = tuple(device for device in cards(devices) if not device.mig_enabled)
    return whole + tuple(device for device in devices if device.uuid in split)


def shows_several(driver_version: str | None) -> bool:
    """CUDA shows a process more than one instance, and whole cards beside them."""
    major = re.match("[0-9]{1,9}", driver_version or "")
    return major is not None and int(major.group()) >= 570


def as_cuda_shows(named: Sequence[Device], inventory: Inventory) -> tuple[Device, ...]:
    """The GPUs that a list of these means: of a card in MIG mode its instances, which before R570 hide whole cards."""
    shown: dict[str, Device] = {}
    for device in named:
        of_card = [each for each in inventory.devices if each.parent == device.uuid]
        shown.update({each.uuid: each for each in of_card or [device]})
    if are_among(shown.values()) and not shows_several(inventory.driver_version):
        return tuple(device for device in shown.values() if device.parent is not None)
    return tuple(shown.values())


def is_called(device: Device, name: str) -> bool:
    """``name``, ``GPU-...`` or ``MIG-...``, is the beginning of its UUID."""
    return bool(name) and device.uuid.lower().startswith(name.lower())


def named_by_nvml(counted: Sequence[str], devices: Iterable[Device]) -> tuple[str, ...]:
    """The GPUs that CUDA counts, by NVML's UUIDs: that of an instance has no prefix of its own in the CUDA driver."""
    names = {"GPU-" + device.uuid[4:]: device.uuid for device in devices if device.parent is not None}
    return tuple(names.get(uuid, uuid) for uuid in counted)


def best_kind_first(devices: Sequence[Device]) -> tuple[Device, ...]:
    """Whole cards before instances, or behind them, as the best one is."""
    return tuple(sorted(devices, key=lambda device: (device.parent is None) != (devices[0].parent is None)))


def listed_before_claim(devices: Sequence[Device], *, is_rank: bool, shows_several: bool) -> tuple[Device, ...]:
    """The GPUs of a process, best first, that its list names until it claims one of them: cards, else an instance."""
    if devices[0].parent is None or (is_rank and cards(devices)):
        return cards(devices)
    return tuple(devices if shows_several else devices[:1])


def to_list(
    taken: Sequence[Device], of_ranks: Sequence[str], pool: Sequence[Device], *, shows_several: bool
) -> tuple[Device, ...]:
    """The GPUs that ``CUDA_VISIBLE_DEVICES`` is to name for a process, or the ranks of one job, that has claimed."""
    known = {device.uuid: device for device in pool}
    ranks = [known[uuid] for uuid in of_ranks if uuid in known]
    if shows_several and are_among(ranks):
        # Each of them has to count the others' as well, also where some have a card and some an instance.
        return tuple(ranks)
    return tuple(taken[:1]) if are_among(taken) else cards(pool)
