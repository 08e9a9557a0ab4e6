"""Sentences about the policy: where it was set, and lists that match no GPU."""

from __future__ import annotations

from typing import Iterable, Iterator

from autogpu.devices.model import Device, Inventory
from autogpu.policy.model import BY_DOTTED, Resolved
from autogpu.reporting.gpus import unreadable
from autogpu.selection.model import VisibleSpec
from autogpu.selection.ranking import UnmatchedList, matches, unmatched_lists
from autogpu.text import listed, printable


def origins(resolved: Resolved) -> str:
    """Return the files and variables that set policy keys: ``~/proj/autogpu.toml, AUTOGPU_COUNT``."""
    found = [setting.origin.place for setting in resolved.settings.values() if setting.is_set]
    return printable(", ".join(dict.fromkeys(found))) if found else "defaults"


def unless_locked(remedy: str, locked: Iterable[str]) -> str:
    """Return ``remedy``; if it sets a key that the host locks, return the advice to ask the administrator instead."""
    for key in sorted(locked):
        if f"{BY_DOTTED[key].variable}=" in remedy:
            return f"{key} is locked on this host: ask its administrator to change it"
    return remedy


def unmatched(resolved: Resolved, inventory: Inventory, spec: VisibleSpec) -> Iterator[str]:
    """Yield a line for each list of the policy that has entries which match no GPU of the machine."""
    for found in unmatched_lists(resolved.policy, inventory, spec):
        yield unmatched_list(found, resolved, inventory)


def unmatched_list(found: UnmatchedList, resolved: Resolved, inventory: Inventory) -> str:
    written = ", ".join(printable(entry, 64) for entry in found.entries)
    what = f"{found.key} = {written} ({resolved.settings[found.key].origin}) matches none of the GPUs here"
    return f"{what}; {_what_there_is(found, inventory)}"


def _what_there_is(found: UnmatchedList, inventory: Inventory) -> str:
    devices = inventory.devices
    lost = [each for each in inventory.unreadable if str(each.index) in found.entries]
    if lost:
        return unreadable(lost)
    for entry in map(str.strip, found.entries):
        if _is_part_of_a_name(entry, devices):
            return f'for a part of a name, write "*{printable(entry, 64)}*"'
    known = listed([printable(name, 64) for name in dict.fromkeys(device.name for device in devices)])
    last = devices[-1].index
    return f"this host has {f'GPUs 0 to {last}' if last else 'GPU 0'}, named {known}"


def _is_part_of_a_name(entry: str, devices: Iterable[Device]) -> bool:
    # An entry that is a number is an index, not a part of a name: "9" must not match "RTX 3090".
    is_number = entry.replace("-", "").isdecimal()
    return not is_number and any(matches(device, [f"*{entry}*"]) for device in devices)
