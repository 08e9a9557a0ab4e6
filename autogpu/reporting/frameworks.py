"""Sentences about a framework: what it uses besides, what it got too late, and hooks that its version lacks."""

from __future__ import annotations

from typing import Sequence

from autogpu.devices.model import Inventory
from autogpu.policy.model import BY_DOTTED, Resolved
from autogpu.reporting.gpus import driver_remedy, gpu_names, labels
from autogpu.selection.decision import Decision
from autogpu.selection.model import Tier
from autogpu.selection.visible_devices import NoGpu
from autogpu.text import counted, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.frameworks.model import Hooks

# Policy keys without effect if a framework lacks its essential hook: the line names those that are set.
_NEEDS_HOOKS = ("select.need", "select.busy", "memory.limit", "memory.virtual_gpus")


def contexts_beside(framework: str, numbers: Sequence[str]) -> str:
    """Return the end of a line, which names the unclaimed GPUs on which a ``framework`` makes a context as well."""
    return f", {framework} makes a context on {gpu_names(numbers)} too" if numbers else ""


def few_devices(framework: str, shown: int, needed: int, total: int, *, is_rank: bool) -> str:
    """Return the line for a script that ended because its device number is too large for the devices it was given."""
    remedy = "a rank's own GPU is device 0" if is_rank else f"to have them: AUTOGPU_COUNT={needed}"
    return f"{framework} was given {shown} of {total} GPUs, and the script's number needs at least {needed}; {remedy}"


def sees_no_gpu(why: NoGpu, value: str | None, inventory: Inventory, framework: str) -> list[str]:
    """Return the line for a framework that sees no GPU; nothing if its user expects that.

    Args:
        value: ``CUDA_VISIBLE_DEVICES``; ``None`` if it is not set.
    """
    if why is NoGpu.NAMES_NONE:
        last = max(device.index for device in inventory.devices)
        what = f"CUDA_VISIBLE_DEVICES={printable(value or '')} names no GPU here, {framework} starts on CPU"
        return [f"{what}; there are the indices 0 to {last}"]
    if why is NoGpu.DRIVER_FAILURE:
        return [f"{framework} sees no GPU; {printable(inventory.failure or '')}; {driver_remedy(inventory)}"]
    return []


def set_too_late(value: str, framework: str) -> str:
    what = f"CUDA_VISIBLE_DEVICES={printable(value)} was set after CUDA had read it and has no effect"
    return f"{what}, as without autogpu; set it before {framework} lists GPUs"


def hooks_missing(hooks: Hooks, resolved: Resolved, framework: str) -> str:
    """Return the line for a version that lacks hooks, with the policy keys that are set and have no effect."""
    set_here = [resolved.settings[name] for name in _NEEDS_HOOKS if not hooks.found]
    not_in_force = [f"{each.key} ({each.origin})" for each in set_here if each.value != BY_DOTTED[each.key].default]
    lacks = ", ".join(f"{name} ({effect})" for name, effect in hooks.missing.items())
    line = f"this {framework} ({printable(hooks.version)}) lacks what autogpu hooks into: {lacks}"
    return line + ("; not in force: " + ", ".join(not_in_force) if not_in_force else "")


def few_replicas(strategy: str, replicas: int, decision: Decision, per_user: int = 0) -> list[str]:
    """Return a line for a strategy that has only a part of the pool: how to get more; nothing if it has all."""
    taken = len(decision.ordinals)
    pool = len(decision.ranking.pool)
    if not taken or taken >= pool:
        return []
    free = sum(candidate.tier is Tier.FREE for candidate in decision.ranking.candidates)
    more = f"for more: AUTOGPU_COUNT={max(min(free, decision.attainable), taken + 1)}"
    line = f"{strategy} has {counted(replicas, 'replica')}, on {taken} of {counted(pool, 'GPU')}; "
    if decision.attainable > taken:
        return [line + more]
    # The cap counts all jobs of the user, and only beside a free GPU is it what stands in the way.
    why = f": limits.per_user allows {per_user}, all your jobs together" if per_user and free > taken else ""
    return [f"{line}no more can be had now{why}"]


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
    """Return the line for a build of a framework whose GPUs autogpu does not know."""
    return f"policy not applied: {why}; {framework} continues with its defaults"
