"""An outcome in words: one line, or each GPU with its reason."""

from __future__ import annotations

import os
from pathlib import Path

from autogpu.decision import Verdict
from autogpu.selection import free_memory
from autogpu.stderr import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Sequence

    from autogpu.decision import Decision
    from autogpu.devices.model import Device, Inventory, Unreadable
    from autogpu.frameworks.model import Usage
    from autogpu.policy import Resolved, Setting
    from autogpu.selection import Ranking

# Accepted and checked, and their mechanism is not there yet: whoever sets one must hear it.
NOT_IN_FORCE = ("memory.virtual_gpus",)


def short_path(path: Path) -> str:
    """``path`` as people write it, with ``~`` for the home folder."""
    home, text = os.environ.get("HOME", ""), os.fspath(path)
    return "~" + text[len(home) :] if home.strip(os.sep) and text.startswith(home + os.sep) else text


def outcome(decision: Decision | None, usage: Usage, resolved: Resolved, inventory: Inventory | None) -> list[str]:
    """What a process hears when its framework has settled which GPUs it takes; often one line, sometimes none.

    Args:
        decision: ``None`` if the framework sees no GPU, so that none was chosen.
        usage: What the framework takes.
        resolved: The policy with its history.
        inventory: The readings behind the decision.
    """
    if decision is None:
        return _absence(inventory)
    level = resolved.policy.level
    lines = _not_in_force(resolved)
    visible = decision.visible
    taken = [visible[ordinal] for ordinal in usage.ordinals if ordinal < len(visible)]
    devices = [device for device in taken if device]
    if not usage.ordinals and decision.verdict is Verdict.LEAVE:
        return lines  # the script itself hid every GPU
    if not usage.ordinals:
        message = f"no GPU for this process, TensorFlow starts on CPU: {decision.why}; policy: {origins(resolved)}"
    elif not devices:
        message = (
            f"{_count(len(usage.ordinals), 'GPU')} taken as without autogpu: {decision.why}; memory {usage.memory}"
        )
    else:
        names = " and ".join(f"GPU {device.index} ({shown(device.name)}, {free_memory(device)})" for device in devices)
        message = f"{names}: {decision.why}; memory {usage.memory}; policy: {origins(resolved)}"
        if len(devices) < len(decision.ranking.candidates):
            message += f"; for more GPUs: AUTOGPU_COUNT={len(devices) + 1}"
    if level != "quiet":
        lines.append(message)
    if level == "explain":
        lines += explain(decision.ranking, devices, inventory.unreadable if inventory else ())
    return lines


def origins(resolved: Resolved) -> str:
    """Every file and variable that says something: ``~/proj/autogpu.toml, AUTOGPU_COUNT``."""
    found = []
    for setting in resolved.settings.values():
        origin = setting.origin
        if origin.layer != "default":
            name = short_path(origin.file) if origin.file else str(origin)
            if name not in found:
                found.append(name)
    return shown(", ".join(found)) if found else "defaults"


def explain(
    ranking: Ranking, taken: Sequence[Device], unreadable: Sequence[Unreadable], first: str = "taken"
) -> list[str]:
    """Every GPU of the pool with the reason why it was taken or not, one line each, best first.

    Args:
        first: What is said of those in ``taken``.
    """
    uuids = {device.uuid for device in taken}
    lines = []
    for place, candidate in enumerate(ranking.candidates, start=1):
        verdict = first if candidate.device.uuid in uuids else f"place {place}"
        state = candidate.tier.name.lower()
        lines.append(f"  GPU {candidate.device.index}: {verdict}: {state}, {candidate.why}")
    for rejection in ranking.rejected:
        verdict = first if rejection.device.uuid in uuids else "not eligible"
        lines.append(f"  GPU {rejection.device.index}: {verdict}: {rejection.why}")
    lines += [f"  GPU {lost.index}: not readable: {shown(lost.reason)}" for lost in unreadable]
    return lines


def _absence(inventory: Inventory | None) -> list[str]:
    if inventory is None:
        return ["the NVIDIA driver has not answered; TensorFlow sees no GPU; does `nvidia-smi` answer?"]
    if inventory.failure and not inventory.is_driverless:
        return [f"TensorFlow sees no GPU; {shown(inventory.failure)}; `nvidia-smi` should say the same"]
    return []


def _not_in_force(resolved: Resolved) -> list[str]:
    asked = []
    for name in NOT_IN_FORCE:
        setting = resolved.settings[name]
        if setting.overrides is not None and setting.value != default(setting).value:
            asked.append(f"{name} ({setting.origin})")
    if not asked:
        return []
    return ["accepted, but not in force in this version: " + ", ".join(asked)]


def default(setting: Setting) -> Setting:
    """The lowest layer below ``setting``."""
    while setting.overrides is not None:
        setting = setting.overrides
    return setting


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
