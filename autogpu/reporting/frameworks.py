"""Sentences about a framework: unclaimed GPUs that it uses, settings that came after its start, and missing hooks."""

from __future__ import annotations

from typing import Sequence

from autogpu.devices.model import Inventory
from autogpu.policy.model import BY_DOTTED, Resolved
from autogpu.reporting.gpus import driver_remedy, gpu_names, labels
from autogpu.selection.decision import Decision
from autogpu.selection.model import Tier
from autogpu.selection.visible_devices import NoGpu
from autogpu.text import counted, listed, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.frameworks.model import Hooks

# Policy keys without effect if autogpu found no hook; :func:`hooks_missing` lists the ones that are set.
_NEEDS_HOOKS = ("select.need", "select.busy", "memory.limit", "memory.virtual_gpus")


def contexts_beside(framework: str, numbers: Sequence[str]) -> str:
    """Return the unclaimed GPUs on which a ``framework`` also creates a context, as text to append to a line."""
    return f", {framework} also creates a CUDA context on {gpu_names(numbers)}" if numbers else ""


def few_devices(framework: str, shown: int, needed: int, total: int, *, is_rank: bool) -> str:
    """Return the line for a script that ended because its device number is too large for the devices it sees."""
    remedy = "in each rank use device 0, its own GPU" if is_rank else f"for more GPUs: AUTOGPU_COUNT={needed}"
    return f"{framework} sees {shown} of {total} GPUs, but the script's device number needs at least {needed}; {remedy}"


def sees_no_gpu(why: NoGpu, value: str | None, inventory: Inventory, framework: str) -> list[str]:
    """Return the line for a framework that sees no GPU; nothing if its user expects that.

    Args:
        value: ``CUDA_VISIBLE_DEVICES``; ``None`` if it is not set.
    """
    if why is NoGpu.NAMES_NONE:
        last = max(device.index for device in inventory.devices)
        what = f"CUDA_VISIBLE_DEVICES={printable(value or '')} matches no GPU of this host, {framework} starts on CPU"
        return [f"{what}; valid indices: {f'0 to {last}' if last else '0'}"]
    if why is NoGpu.DRIVER_FAILURE:
        parts = [f"{framework} sees no GPU: {printable(inventory.failure or '')}", driver_remedy(inventory)]
        return ["; ".join(filter(None, parts))]
    return []


def set_too_late(value: str, framework: str) -> str:
    what = f"CUDA_VISIBLE_DEVICES={printable(value)} has no effect: CUDA had already read it"
    return f"{what}; set it before the script uses {framework}"


def hooks_missing(hooks: Hooks, resolved: Resolved, framework: str) -> str:
    """Return the line for a version that lacks hooks, with the policy keys that are set and have no effect."""
    set_here = [resolved.settings[name] for name in _NEEDS_HOOKS if not hooks.found]
    keys = [f"{each.key} ({each.origin})" for each in set_here if each.value != BY_DOTTED[each.key].default]
    lacks = ", ".join(f"{name} ({effect})" for name, effect in hooks.missing.items())
    line = f"{framework} {printable(hooks.version)} lacks functions that autogpu hooks into: {lacks}"
    return line + (f"; {listed(keys)} {'has' if len(keys) == 1 else 'have'} no effect" if keys else "")


def few_replicas(strategy: str, replicas: int, decision: Decision, per_user: int = 0) -> list[str]:
    """Return a line for a strategy that has only some GPUs of the pool, and how to get more; nothing if it has all."""
    taken = len(decision.ordinals)
    pool = len(decision.ranking.pool)
    if not taken or taken >= pool:
        return []
    free = sum(candidate.tier is Tier.FREE for candidate in decision.ranking.candidates)
    more = f"for more GPUs: AUTOGPU_COUNT={max(min(free, decision.attainable), taken + 1)}"
    line = f"{strategy} has {counted(replicas, 'replica')}, on {taken} of {counted(pool, 'GPU')}; "
    if decision.attainable > taken:
        return [line + more]
    # The cap counts all jobs of the user. It is the reason only if a GPU is free.
    why = f": limits.per_user allows {per_user} for all your jobs" if per_user and free > taken else ""
    return [f"{line}no more GPUs now{why}"]


def spreading(library: str, decision: Decision) -> list[str]:
    """Return a line that names the unclaimed GPUs that a ``library`` uses as well; nothing if there are none."""
    claimed = {*decision.claims, *decision.of_ranks}
    others = [device for device in decision.visible if device and device.uuid not in claimed]
    if not others:
        return []
    names = labels(sorted(others, key=lambda device: device.index))
    own = labels(decision.devices)
    what = f"{library} also uses {names}, which this process has not claimed"
    return [f"{what}; to use {own} alone: AUTOGPU_VISIBLE=chosen"]


def late_name(number: int, taken: int, framework: str) -> str:
    """Return the line for a script that names a GPU after the framework has started without it."""
    what = f"the script names '/gpu:{number}' after {framework} has started with {counted(taken, 'GPU')}"
    return f"{what}; to start with {number + 1}: AUTOGPU_COUNT={number + 1}"


def late_replicas(strategy: str, replicas: int, wanted: int, taken: int, framework: str) -> str:
    """Return the line for a strategy without the devices that the script named after the framework's start."""
    what = f"{strategy} has {counted(replicas, 'replica')} instead of {wanted}"
    why = f"{framework} had started with {counted(taken, 'GPU')} before"
    return f"{what}: {why}; for {wanted}: AUTOGPU_COUNT={wanted}"


def unsupported(why: str, framework: str) -> str:
    """Return the line for a framework build whose GPUs autogpu does not support."""
    return f"settings are not applied: {why}; {framework} continues with its defaults"
