"""``select.devices`` and ``select.exclude`` that match none of the GPUs: what is said of them. Pure."""

from __future__ import annotations

from autogpu.reporting.text import listed, printable
from autogpu.selection.ranking import matches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, Sequence

    from autogpu.devices.model import Device
    from autogpu.policy import Resolved
    from autogpu.selection.model import VisibleSpec


def unmatched_lists(resolved: Resolved, devices: Sequence[Device], spec: VisibleSpec) -> Mapping[str, str]:
    """By key, what to say of a list that counts and matches none of ``devices``, which are those of the machine."""
    found, policy = {}, resolved.policy
    for dotted, entries in (("select.devices", policy.devices), ("select.exclude", policy.exclude)):
        counts = entries and devices and spec.admits(dotted, policy)
        if counts and not any(matches(device, entries) for device in devices):
            written = ", ".join(printable(entry, 64) for entry in entries)
            found[dotted] = (
                f"{dotted} = {written} ({resolved.settings[dotted].origin}) matches none of the GPUs here; "
                f"{_what_there_is(entries, devices)}"
            )
    return found


def _what_there_is(entries: Sequence[str], devices: Sequence[Device]) -> str:
    parts = [e for e in entries if "*" not in e and any(e.strip().lower() in d.name.lower() for d in devices)]
    if parts:
        return f'for a part of a name, write "*{printable(parts[0], 64)}*"'
    names = listed(sorted({printable(device.name, 64) for device in devices}))
    return f"there are the indices 0 to {max(device.index for device in devices)}: {names}"
