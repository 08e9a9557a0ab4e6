"""The lines that a process prints: which GPUs it takes and why, what is not in force, what it is waiting for."""

from __future__ import annotations

from typing import Callable, Sequence

from autogpu.devices.model import Device, Inventory
from autogpu.policy.model import BY_DOTTED, Resolved
from autogpu.selection import explain
from autogpu.selection.grants import Grant
from autogpu.selection.model import Decision, Tier
from autogpu.text import counted, listed, printable, span
from autogpu.users import user_name
from autogpu.variables import LEASE_DIR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.frameworks.model import Hooks, Usage
    from autogpu.lease import LeaseUnavailable, QueueState, UnreadableFile

# In one line with their names; `autogpu status` shows each.
_MOST_GPUS = 4

# Of a wait: seldom enough for a log, and for what a person does in that terminal.
_LINE_EVERY_S = 300.0

# Not in force where a framework lacks its essential hook: one that is set must be named.
_NEEDS_HOOKS = ("select.need", "select.busy", "memory.limit", "memory.virtual_gpus")


def outcome(
    decision: Decision | None,
    usage: Usage,
    resolved: Resolved,
    inventory: Inventory | None,
    framework: str,
    task: str = "",
) -> list[str]:
    """The lines about the GPUs that a framework takes; often one, sometimes none.

    Args:
        decision: ``None`` if the framework sees no GPU, so that none was chosen.
        inventory: The readings behind the decision.
        task: An engine's name for this process: its log may have the lines of many.
    """
    if decision is None:
        return _no_gpu_seen(inventory, framework)
    if not usage.ordinals and not decision.is_ours:
        return []  # the script itself hid every GPU
    devices, level = decision.at(usage.ordinals), resolved.policy.level
    lines = [] if level == "quiet" else [_taken(decision, usage, devices, resolved, framework, task)]
    if level == "explain":
        lines += explain.each_gpu(decision.ranking, devices, inventory)
    return lines


def _taken(
    decision: Decision, usage: Usage, devices: list[Device], resolved: Resolved, framework: str, task: str
) -> str:
    policy = f"policy: {origins(resolved)}"
    if not usage.ordinals:
        return f"no GPU for {task or 'this process'}, {framework} starts on CPU: {decision.why}; {policy}"
    if not devices:
        gpus = counted(len(usage.ordinals), "GPU")
        return f"{gpus} taken as without autogpu: {decision.why}; memory {usage.memory}"
    why = f"{decision.why}; {decision.why_capped}" if decision.why_capped else decision.why
    line = f"{_gpus(devices)}{f' for {task}' if task else ''}: {why}; memory {usage.memory}; {policy}"
    if decision.remedy:
        line += f"; {decision.remedy}"
    elif len(devices) < decision.attainable:
        line += f"; for more GPUs: AUTOGPU_COUNT={len(devices) + 1}"
    return line


def contexts_beside(framework: str, labels: Sequence[str]) -> str:
    """Return the end of a line, which names the unclaimed GPUs on which a ``framework`` makes a context as well."""
    return f", {framework} makes a context on {explain.gpu_names(labels)} too" if labels else ""


def few_devices(framework: str, shown: int, needed: int, total: int, *, is_rank: bool) -> str:
    """Return the line for a script that ended because its device number is too large for the devices it was given."""
    remedy = "a rank's own GPU is device 0" if is_rank else f"to have them: AUTOGPU_COUNT={needed}"
    return f"{framework} was given {shown} of {total} GPUs, and the script's number needs at least {needed}; {remedy}"


def not_held(shared: Sequence[Device], decision: Decision) -> str:
    """Say, after the reason for the GPUs that a program has, that it shares some although it asked to hold them."""
    names = "" if len(shared) == len(decision.devices) else explain.gpu_names(device.label for device in shared) + " "
    # Who waits takes an idle lease as well.
    idle = {each.device.uuid for each in decision.ranking.candidates if each.tier is Tier.IDLE_LEASE}
    by_waiting = "" if idle.issuperset(device.uuid for device in shared) else ". To wait for a free GPU: --busy wait"
    return f"; {names}not reserved: others may join{by_waiting}"


def _gpus(devices: list[Device]) -> str:
    if len(devices) <= _MOST_GPUS:
        return listed([f"GPU {d.label} ({printable(d.name, 64)}, {explain.free_memory(d)})" for d in devices])
    return f"{len(devices)} GPUs (" + ", ".join(device.label for device in devices) + ")"


def _no_gpu_seen(inventory: Inventory | None, framework: str) -> list[str]:
    if inventory is None:
        return [f"{framework} sees no GPU, and NVML timed out; does `nvidia-smi` answer?"]
    if inventory.failure and not inventory.has_no_driver:
        return [f"{framework} sees no GPU; {printable(inventory.failure)}; {inventory.remedy}"]
    return []


def names_no_gpu(value: str, inventory: Inventory, framework: str) -> str:
    there_are = f"there are the indices 0 to {max(device.index for device in inventory.devices)}"
    return f"CUDA_VISIBLE_DEVICES={printable(value)} names no GPU here, {framework} starts on CPU; {there_are}"


def set_too_late(value: str, framework: str) -> str:
    what = f"CUDA_VISIBLE_DEVICES={printable(value)} was set after CUDA had read it and has no effect"
    return f"{what}, as without autogpu; set it before {framework} lists GPUs"


def granted_gpus(grant: Grant, visible: str | None) -> str:
    """``50 % of GPU 2``, as the engine calls it."""
    if grant.is_none:
        return "no GPU"
    entries = [printable(entry.strip(), 64) for entry in (visible or "?").split(",")]
    gpus = listed([entry if entry.startswith(("GPU-", "MIG-")) else f"GPU {entry}" for entry in entries])
    return f"{100 * grant.fraction:.0f} % of {gpus}" if grant.fraction else gpus


def lease_problem(error: LeaseUnavailable, *, is_unclaimed: bool) -> str:
    """The lock of the host's leases could not be had, or nothing could be claimed at all."""
    what = "claiming without the host's lock"
    if is_unclaimed:
        what = "nothing is claimed, so that other jobs don't see this one"
    return f"{what}: {printable(error.what)}; {printable(error.remedy)}"


def folder_on_fuse(path: str) -> tuple[str, str]:
    """Return what is wrong with such a lease folder, and the remedy."""
    where = f"the lease folder {printable(path)} is on a FUSE file system"
    remedy = f"let all jobs use the same folder on a local file system ({LEASE_DIR})"
    return f"{where}: jobs that use it without FUSE see no claim made here", remedy


def unreadable_file(file: UnreadableFile) -> str:
    """Name a file in the lease folder that counts for nothing, its owner and the error."""
    owner = "" if file.uid is None else f" of {user_name(file.uid)}"
    return f"{printable(file.name)}{owner} can't be read ({printable(str(file.error.strerror))})"


def origins(resolved: Resolved) -> str:
    """Every file and variable that sets something: ``~/proj/autogpu.toml, AUTOGPU_COUNT``."""
    found = [setting.origin.place for setting in resolved.settings.values() if setting.is_set]
    return printable(", ".join(dict.fromkeys(found))) if found else "defaults"


def hooks_missing(hooks: Hooks, resolved: Resolved, framework: str) -> str:
    """This version of a framework differs from those that autogpu knows; what is set and not in force is named."""
    set_here = [resolved.settings[name] for name in _NEEDS_HOOKS if not hooks.found]
    not_in_force = [f"{each.key} ({each.origin})" for each in set_here if each.value != BY_DOTTED[each.key].default]
    lacks = ", ".join(f"{name} ({effect})" for name, effect in hooks.missing.items())
    line = f"this {framework} ({printable(hooks.version)}) lacks what autogpu hooks into: {lacks}"
    return line + ("; not in force: " + ", ".join(not_in_force) if not_in_force else "")


def few_replicas(strategy: str, replicas: int, decision: Decision, per_user: int = 0) -> list[str]:
    """A strategy that wants all GPUs has a part of the pool, and how to get more; no line if it has all."""
    taken, pool = len(decision.ordinals), len(decision.ranking.pool)
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
    names = explain.gpu_names(device.label for device in sorted(others, key=lambda device: device.index))
    own = explain.gpu_names(device.label for device in decision.devices)
    what = f"{library} also uses {names}, which this process has not claimed"
    return [f"{what}; to use {own} alone: AUTOGPU_VISIBLE=chosen"]


def late_name(number: int, taken: int, framework: str) -> str:
    """The script names a GPU that does not exist, because the framework has started without it."""
    what = f"the script names '/gpu:{number}' after {framework} has started with {counted(taken, 'GPU')}"
    return f"{what}; to start with {number + 1}: AUTOGPU_COUNT={number + 1}"


def late_replicas(strategy: str, replicas: int, wanted: int, taken: int, framework: str) -> str:
    """A strategy leaves out devices that do not exist, because the framework has started without them."""
    what = f"{strategy} has {counted(replicas, 'replica')} instead of {wanted}"
    why = f"{framework} had started with {counted(taken, 'GPU')} before"
    return f"{what}: {why}; for {wanted}: AUTOGPU_COUNT={wanted}"


class WaitingReport:
    """Prints a line about the queue at once, and again at another place in it."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._printed_s = -_LINE_EVERY_S
        self._position = -1

    def __call__(self, state: QueueState, decision: Decision) -> None:
        if state.position != self._position and state.waited_s - self._printed_s >= _LINE_EVERY_S:
            self._printed_s, self._position = state.waited_s, state.position
            gpus = "a GPU" if state.count == 1 else f"{state.count} GPUs"
            # Who shares goes on to wait for the minute.
            limit = f" of {span(state.timeout_s)}" if state.waited_s < state.timeout_s else ""
            waited = span(state.waited_s) + limit
            place = f"waiting for {gpus}, place {state.position} in the queue, {waited}"
            self._say(f"{place}: {decision.why}; Ctrl-C stops")
