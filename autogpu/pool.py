"""Which GPUs this process may use at all: what ``CUDA_VISIBLE_DEVICES`` means, who set it, what to write there.

Pure. The pool is a frame that somebody else drew (a shell, a scheduler, the script); choosing happens inside it and
it is never widened.
"""

from __future__ import annotations

import re

from autogpu.frozen import frozen
from autogpu.selection import Cause

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, MutableMapping, Sequence

    from autogpu.devices.model import Device, Inventory
    from autogpu.selection import Ranking

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"

# What a process finds when an ancestor of it wrote the variable: our own value is nobody's word.
WRITTEN = "AUTOGPU_ORIG_WRITTEN"
ORIGINAL = "AUTOGPU_ORIG_CUDA_VISIBLE_DEVICES"

# A worker's engine sets the variable after the interpreter's start; that is the engine's word, not the script's.
# Ray and Dask set these before a worker's first line of Python runs.
_ENGINE_WORKERS = ("RAY_RAYLET_PID", "__DASK_PARENT_PID")


@frozen
class Start:
    """``CUDA_VISIBLE_DEVICES`` as the interpreter found it.

    Attributes:
        value: The text itself; ``None`` if it was not set.
        inherited: What it was before an autogpu in an ancestor rewrote it: our own value is nobody's word.
    """

    value: str | None
    inherited: str | None


@frozen
class Frame:
    """Who says which GPUs may be used.

    Attributes:
        value: Of ``CUDA_VISIBLE_DEVICES``; ``None`` if nobody set it.
        author: ``"nobody"``, ``"inherited"`` (shell, scheduler, engine), or ``"script"`` (hard-coded in its source).
        overridden: The script's own value that ``select.script = "override"`` set aside, else ``None``.
    """

    value: str | None
    author: str
    overridden: str | None = None


def start(environ: Mapping[str, str], started_with: str | None) -> Start:
    """See :class:`Start`; ``environ`` as it was before this process changed it."""
    if started_with is not None and started_with == environ.get(WRITTEN):
        return Start(started_with, environ.get(ORIGINAL))
    return Start(started_with, started_with)


def frame(environ: Mapping[str, str], start: Start, script: str = "respect") -> Frame:
    """Tell what a script hard-codes from what it inherited.

    Args:
        environ: The environment now.
        start: The variable at the interpreter's start.
        script: ``select.script``: whether a hard-coded value is respected or overridden.
    """
    now = environ.get(VISIBLE)
    is_scripts_word = now != start.value and not any(name in environ for name in _ENGINE_WORKERS)
    if not is_scripts_word:
        value = start.inherited if now == start.value else now
        return Frame(value, "nobody" if value is None else "inherited")
    if script == "override":
        author = "nobody" if start.inherited is None else "inherited"
        return Frame(start.inherited, author, overridden="(unset)" if now is None else now)
    return Frame(now, "nobody" if now is None else "script")


def restore(environ: MutableMapping[str, str], value: str | None) -> None:
    """Put ``CUDA_VISIBLE_DEVICES`` back to ``value``."""
    if value is None:
        environ.pop(VISIBLE, None)
    else:
        environ[VISIBLE] = value


def members(value: str | None, inventory: Inventory, order: str | None) -> tuple[str, ...] | None:
    """The UUIDs that a value of ``CUDA_VISIBLE_DEVICES`` names, in its order; ``None`` if only the driver can tell.

    The rules are those of NVIDIA's CUDA programming guide (appendix on environment variables): the first invalid
    entry ends the list, a repeated GPU empties it, a UUID may be cut to a unique prefix, kinds are not mixed.

    Args:
        value: ``None`` means every GPU.
        inventory: What there is, in PCI bus order.
        order: ``CUDA_DEVICE_ORDER``. By default CUDA counts the fastest GPU first, by a rule of its own, so an index
            is certain only with ``PCI_BUS_ID`` or where all GPUs are of one model.
    """
    devices = inventory.devices
    if value is None:
        return tuple(device.uuid for device in devices)
    entries = [entry.strip() for entry in value.split(",")]
    if entries[0].upper().startswith("MIG-"):
        return None
    if entries[0].upper().startswith("GPU-"):
        return _by_uuid(entries, devices)
    return _by_index(entries, inventory, order)


def _by_uuid(entries: Sequence[str], devices: Sequence[Device]) -> tuple[str, ...]:
    found: list[str] = []
    for entry in entries:
        hits = [d.uuid for d in devices if entry[:4].upper() == "GPU-" and d.uuid.lower().startswith(entry.lower())]
        if len(hits) != 1:
            break
        if hits[0] in found:
            return ()
        found += hits
    return tuple(found)


def _by_index(entries: Sequence[str], inventory: Inventory, order: str | None) -> tuple[str, ...] | None:
    devices = inventory.devices
    found: list[int] = []
    for entry in entries:
        number = re.match(r"[+-]?\d+", entry)
        index = int(number.group()) if number else -1
        if not 0 <= index < len(devices) + len(inventory.unreadable):
            break
        if index in found:
            return ()
        found.append(index)
    if not found:
        return ()
    is_one_model = len({device.name for device in devices}) == 1
    if inventory.unreadable or not (order == "PCI_BUS_ID" or is_one_model):
        return None
    return tuple(devices[index].uuid for index in found)


def plan_environment(
    ranking: Ranking,
    frame: Frame,
    *,
    count: int,
    visible: str,
    identifier: str,
    index_is_certain: bool,
    order: Sequence[str] = (),
) -> dict[str, str]:
    """What to write into the environment so that the idlest GPU comes first; nothing if there is nothing to say.

    The two variables beside ``CUDA_VISIBLE_DEVICES`` tell an autogpu in a child what was there before.

    Args:
        ranking: Of the pool's GPUs.
        frame: Where the pool came from.
        count: How many GPUs the process takes, for ``visible = "chosen"``.
        visible: ``select.visible``: the whole ``"pool"`` or only the ``"chosen"``.
        identifier: ``select.identifier``: ``"uuid"`` or ``"index"``.
        index_is_certain: Whether NVML's indices are also CUDA's under ``PCI_BUS_ID``: not so with a GPU lost.
        order: UUIDs in the order to keep instead, for ranks that count the pool's GPUs among themselves.
    """
    listed = [candidate.device for candidate in ranking.candidates]
    if visible == "chosen" and not order:
        listed = listed[:count]
    else:
        # A GPU that can't be taken now stays addressable: without us the script would see it, too.
        listed += [rejection.device for rejection in ranking.rejected if rejection.cause is not Cause.POLICY]
    if order:
        listed.sort(key=lambda device: order.index(device.uuid))
    plan = {}
    if listed and identifier == "index" and index_is_certain:
        plan = {VISIBLE: ",".join(str(device.index) for device in listed), ORDER: "PCI_BUS_ID"}
    elif listed:
        plan = {VISIBLE: ",".join(device.uuid for device in listed)}
    elif any(rejection.cause is Cause.POLICY for rejection in ranking.rejected):
        plan = {VISIBLE: "-1"}
    if plan:
        plan[WRITTEN] = plan[VISIBLE]
        if frame.value is not None:
            plan[ORIGINAL] = frame.value
    return plan
