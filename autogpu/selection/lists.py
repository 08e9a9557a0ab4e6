"""Entries of ``select.devices`` and ``select.exclude`` that match none of the GPUs: what is said of them. Pure."""

from __future__ import annotations

from autogpu.reporting.text import listed, printable
from autogpu.selection.ranking import matches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, Sequence

    from autogpu.devices.model import Device, Inventory
    from autogpu.policy import Resolved
    from autogpu.selection.model import VisibleSpec


def unmatched_lists(resolved: Resolved, inventory: Inventory, spec: VisibleSpec) -> Mapping[str, str]:
    """By key, what to say of the entries of a list that counts which match none of the GPUs of the machine.

    Where a GPU can't be read, an entry may mean that one: a list of which another entry matches is then not spoken of.
    """
    found, policy, devices = {}, resolved.policy, inventory.devices
    is_complete = not (inventory.unreadable or inventory.denied)
    for dotted, entries in (("select.devices", policy.devices), ("select.exclude", policy.exclude)):
        counts = entries and devices and spec.admits(dotted, policy)
        if not counts:
            continue
        unmatched = [entry for entry in entries if not any(matches(device, (entry,)) for device in devices)]
        if len(unmatched) == len(entries):
            said = f"{dotted} = {_written(entries)} ({resolved.settings[dotted].origin}) matches"
        elif unmatched and is_complete:
            verb = "matches" if len(unmatched) == 1 else "match"
            said = f"{_written(unmatched)} in {dotted} ({resolved.settings[dotted].origin}) {verb}"
        else:
            continue
        found[dotted] = f"{said} none of the GPUs here; {_what_there_is(unmatched, devices)}"
    return found


def _written(entries: Sequence[str]) -> str:
    return ", ".join(printable(entry, 64) for entry in entries)


def _what_there_is(entries: Sequence[str], devices: Sequence[Device]) -> str:
    parts = [e for e in entries if "*" not in e and any(e.strip().lower() in d.name.lower() for d in devices)]
    if parts:
        return f'for a part of a name, write "*{printable(parts[0], 64)}*"'
    names = listed(sorted({printable(device.name, 64) for device in devices}))
    return f"there are the indices 0 to {max(device.index for device in devices)}: {names}"
