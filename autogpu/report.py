"""An outcome in words: one line, or each GPU with its reason."""

from __future__ import annotations

import os
from pathlib import Path

from autogpu.decision import Verdict
from autogpu.selection import Cause, Tier, free_memory
from autogpu.stderr import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, Sequence

    from autogpu.decision import Decision
    from autogpu.devices.model import Device, Inventory, Unreadable
    from autogpu.frameworks.model import Grant, Seams, Usage
    from autogpu.policy import Resolved, Setting
    from autogpu.selection import Ranking

# What can't hold where a framework lacks its essential seam: whoever sets one must hear it.
_NEEDS_SEAM = ("select.need", "select.busy", "memory.limit", "memory.virtual_gpus")


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
    lines: list[str] = []
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
        if len(devices) < decision.attainable:
            message += f"; for more GPUs: AUTOGPU_COUNT={len(devices) + 1}"
    if level != "quiet":
        lines.append(message)
    if level == "explain":
        lines += explain(decision.ranking, devices, inventory.unreadable if inventory else ())
    return lines


def unheard(value: str) -> list[str]:
    """That the script's ``CUDA_VISIBLE_DEVICES`` came too late; ``value`` is what it says."""
    return [
        f"CUDA_VISIBLE_DEVICES={shown(value)} was set after CUDA had read it and has no effect, as without autogpu; "
        "set it before TensorFlow lists GPUs"
    ]


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


def missing(seams: Seams, resolved: Resolved) -> list[str]:
    """What is not in force because this version of a framework differs from those that autogpu knows; one line."""
    asked = []
    for name in () if seams.essential else _NEEDS_SEAM:
        setting = resolved.settings[name]
        if setting.overrides is not None and setting.value != default(setting).value:
            asked.append(f"{name} ({setting.origin})")
    lacks = ", ".join(f"{name} ({effect})" for name, effect in seams.missing.items())
    line = f"this TensorFlow ({shown(seams.version)}) lacks what autogpu hooks into: {lacks}"
    return [line + ("; not in force: " + ", ".join(asked) if asked else "")]


def few_replicas(strategy: str, replicas: int, decision: Decision) -> list[str]:
    """That a strategy which wants all GPUs has a part of the pool, and how to get more; else nothing."""
    ranking, taken = decision.ranking, len(decision.ordinals)
    pool = len(ranking.candidates) + sum(rejection.cause is not Cause.POLICY for rejection in ranking.rejected)
    if not taken or taken >= pool:
        return []
    free = sum(candidate.tier is Tier.FREE for candidate in ranking.candidates)
    more = f"for more: AUTOGPU_COUNT={max(min(free, decision.attainable), taken + 1)}"
    return [
        f"{strategy} has {_count(replicas, 'replica')}, on {taken} of {_count(pool, 'GPU')}; "
        + (more if decision.attainable > taken else "no more can be had now")
    ]


def contexts(
    decision: Decision, grant: Grant, spent: Mapping[int, int], aside: Mapping[int, int], is_asked: bool
) -> list[str]:
    """What a process takes on its GPUs beside what TensorFlow allocates, as the driver shows it.

    Args:
        decision: Names the GPUs.
        grant: Their caps.
        spent: By CUDA ordinal, what the process takes with its context and nothing else; GPUs of which the driver
            does not tell are not in it.
        aside: By CUDA ordinal, what was kept free for that, under a limit on the whole process.
        is_asked: Whether somebody wants to know; else only what breaks a promise is said.
    """
    lines = []
    for ordinal, size in spent.items():
        device = decision.visible[ordinal] if ordinal < len(decision.visible) else None
        kept, cap = aside.get(ordinal), grant.caps.get(ordinal)
        if device is None or (not is_asked and (kept is None or size <= kept)):
            continue
        line = f"  GPU {device.index}: this process takes {_mib(size)} by NVML before TensorFlow allocates anything"
        if kept is not None:
            line += f", and {_mib(kept)} of its limit are kept free for that and for libraries"
            line += ": it may exceed the limit" if size > kept else ""
        elif cap is not None:
            line += f", beside the {_mib(cap * grant.logical_gpus)} of its limit"
        lines.append(line)
    if is_asked and not spent:
        lines.append("  what this process takes beside TensorFlow's own memory is not known: NVML does not tell")
    return lines


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"


def default(setting: Setting) -> Setting:
    """The lowest layer below ``setting``."""
    while setting.overrides is not None:
        setting = setting.overrides
    return setting


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
