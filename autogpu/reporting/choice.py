"""Sentences about a choice: why a process has its GPUs, or none, and what would change that."""

from __future__ import annotations

import sys
from typing import Callable, Mapping, Sequence

from autogpu.devices.model import Device, UnreadableDevice
from autogpu.policy.model import Policy, Resolved
from autogpu.reporting.engines import denial, granted_fraction
from autogpu.reporting.gpus import (
    MOST,
    are,
    candidate_state,
    each_gpu,
    free_memory,
    gpu_names,
    health_faults,
    labels,
    no_device,
    obstacle,
    some,
    unreadable,
)
from autogpu.reporting.memory import suggested_need, took
from autogpu.reporting.policy import origins
from autogpu.selection.decision import Decision, IdleWay, Reason, Shortfall, Verdict
from autogpu.selection.grants import Grant
from autogpu.selection.memory import demand_told
from autogpu.selection.model import Candidate, Cause, Ranking, SelectionRequest, Tier, VisibleSpec, WantedBy
from autogpu.text import MIB, counted, listed, printable, size, span, whole_gib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.frameworks.model import Usage
    from autogpu.history import KnownNeed

DISABLED = "autogpu is switched off"
COUNT_IS_ZERO = "select.count is 0"

# A line names at most so many GPUs; `autogpu status` shows each.
_MOST_GPUS = 4

# Sentences that need no fact of the request.
_SENTENCES = {
    Reason.COUNT_IS_ZERO: COUNT_IS_ZERO,
    Reason.DISABLED: DISABLED,
    Reason.COUNTS_DIFFER: "the CUDA driver and the framework count different GPUs",
    Reason.ONLY_CUDA_KNOWS: (
        "only CUDA can tell which GPUs CUDA_VISIBLE_DEVICES names, for it counts the fastest first; "
        "with CUDA_DEVICE_ORDER=PCI_BUS_ID, or with UUIDs, it is certain"
    ),
}

_IDLE_WAYS = {
    IdleWay.OVERRIDE_SCRIPT: "AUTOGPU_SCRIPT=override",
    IdleWay.UNSET_LIST: "unset CUDA_VISIBLE_DEVICES",
    IdleWay.HOLD_FIRST: "start the program by `autogpu run --hold`",
}

_NO_ORDER = {
    Reason.COUNTED_BEFORE: "CUDA had counted the GPUs before autogpu could choose",
    Reason.WORKERS_NUMBER: "one of them, by a number that only this worker process knows",
}

# A line gives tenths of a GiB, so it can't show a smaller difference.
_LEAST_RESERVED_BYTES = 100 * MIB


def why(decision: Decision) -> str:
    """Return why a process has its GPUs, or has none."""
    if decision.reason in _SENTENCES:
        return _SENTENCES[decision.reason]
    request = decision.request
    assert request is not None
    sentence = _RENDERERS.get(decision.reason, _why_best)(decision, request)
    if request.waited_s >= 1 and decision.verdict is not Verdict.WAIT:
        sentence += f", after {span(request.waited_s)} of waiting"
    if decision.script_numbers:
        sentence += ", as the script's " + listed([f"cuda:{index}" for index in decision.script_numbers])
    return sentence


def why_with_cap(decision: Decision, *, suggests_need: bool = False) -> str:
    """Return :func:`why`, and why the process may allocate only what is free.

    Args:
        suggests_need: True if the line also has the need that the last runs suggest.
    """
    if not decision.is_capped_by_others or decision.request is None:
        return why(decision)
    remedy = "" if suggests_need else f"; say what you need: AUTOGPU_NEED={_example_gib(decision)}GiB"
    if not demand_told(decision.request).is_whole:
        remedy = ", whatever it asks for"
    return f"{why(decision)}; limited to {_shared_part(decision)}{remedy}"


def _example_gib(decision: Decision) -> int:
    """Return what the last runs took on the GPUs, else any number."""
    return max((whole_gib(each.last_runs.bytes) for each in decision.taken if each.last_runs), default=6)


def _shared_part(decision: Decision) -> str:
    """Return how much memory a best-effort job may use. If it has several GPUs, name the one with the lowest cap."""
    shared = [each for each in decision.taken if each.device.uuid in decision.caps]
    lowest = min(shared, key=lambda each: decision.caps[each.device.uuid].bytes, default=None)
    if lowest is None or _reserved_bytes(lowest) < _LEAST_RESERVED_BYTES:
        return "what is free there"
    cap = decision.caps[lowest.device.uuid]
    where = "there" if len(decision.taken) == 1 else f"on GPU {lowest.device.label}"
    free_bytes = lowest.device.memory_free_bytes or 0
    return f"{size(cap.bytes)} of the {size(free_bytes)} free {where}, because other jobs may need the rest"


def _reserved_bytes(candidate: Candidate) -> int:
    """Return the bytes of a GPU's free memory that other jobs have reserved; 0 if the readings are missing."""
    free = candidate.device.memory_free_bytes
    return 0 if free is None or candidate.free_bytes is None else free - candidate.free_bytes


def need_reserved(decision: Decision) -> str:
    """Return the memory that a process has reserved for its stated need; ``""`` if it has reserved none.

    The text follows the reason for the process's GPUs.
    """
    need_bytes = decision.request.policy.need_bytes if decision.request else None
    claims = decision.claims
    if need_bytes is None or not claims or not all(claims.values()):
        return ""
    return f"; {size(need_bytes)} of {'it' if len(claims) == 1 else 'each'} reserved"


def idle_remedy(decision: Decision) -> str:
    """Return what the user can set to get an idle GPU instead of a busy one; ``""`` if nothing helps."""
    return "" if decision.idle_way is None else f"to have the idlest instead: {_IDLE_WAYS[decision.idle_way]}"


def busy_remedy(decision: Decision) -> str:
    """Return the values of ``select.busy`` with which a process that stops for want of a free GPU would get one."""
    ways = ((decision.ranking.suitable, "wait for one", "wait"), (decision.ranking.candidates, "share one", "share"))
    remedies = [f"to {what}, AUTOGPU_BUSY={busy}" for gpus, what, busy in ways if gpus]
    return "; ".join(remedies) or "`autogpu status --explain` shows what keeps it from each GPU"


def outcome(
    decision: Decision,
    usage: Usage,
    resolved: Resolved,
    framework: str,
    task: str = "",
    need: KnownNeed | None = None,
) -> list[str]:
    """Return the lines about the GPUs that a framework takes; often one, sometimes none.

    Args:
        task: The engine's name for this process. An engine's log may contain the lines of many processes.
        need: What the last runs suggest to state; ``None`` if there is nothing to suggest.
    """
    if not usage.ordinals and not decision.is_ours:
        return []  # the script itself hid every GPU
    devices = decision.at(usage.ordinals)
    level = resolved.policy.level
    if level == "quiet" and not decision.misses_gpu:
        return []
    lines = [_taken_line(decision, usage, devices, resolved, framework, task, need)]
    if level == "explain":
        lines += each_gpu(decision, devices)
    return lines


def _taken_line(
    decision: Decision,
    usage: Usage,
    devices: list[Device],
    resolved: Resolved,
    framework: str,
    task: str,
    need: KnownNeed | None,
) -> str:
    policy = f"policy: {origins(resolved)}"
    if not usage.ordinals:
        return f"no GPU for {task or 'this process'}, {framework} starts on CPU: {why(decision)}; {policy}"
    if not devices:
        gpus = counted(len(usage.ordinals), "GPU")
        return f"{gpus} taken as without autogpu: {why(decision)}; memory {usage.memory}"
    whose = f" for {task}" if task else ""
    why_these = why_with_cap(decision, suggests_need=need is not None) + need_reserved(decision)
    line = f"{_gpus(devices)}{whose}: {why_these}; memory {usage.memory}; {policy}"
    remedy = idle_remedy(decision)
    if remedy:
        line += f"; {remedy}"
    elif len(devices) < decision.attainable:
        line += f"; for more GPUs: AUTOGPU_COUNT={len(devices) + 1}"
    return line if need is None else f"{line}; {suggested_need(need)}"


def _gpus(devices: list[Device]) -> str:
    if len(devices) <= _MOST_GPUS:
        return listed([f"GPU {d.label} ({printable(d.name, 64)}, {free_memory(d)})" for d in devices])
    return f"{len(devices)} GPUs (" + ", ".join(device.label for device in devices) + ")"


def not_held(shared: Sequence[Device], decision: Decision) -> str:
    """Return a warning that a program shares some of the GPUs that it asked to hold.

    The text follows the reason for the program's GPUs.
    """
    names = "" if len(shared) == len(decision.devices) else labels(shared) + " "
    # With --busy wait a job takes a GPU with an idle lease as well, so the advice would not help.
    idle = {each.device.uuid for each in decision.ranking.candidates if each.tier is Tier.IDLE_LEASE}
    by_waiting = "" if idle.issuperset(device.uuid for device in shared) else ". To wait for a free GPU: --busy wait"
    return f"; {names}not reserved: others may join{by_waiting}"


def _why_best(decision: Decision, request: SelectionRequest) -> str:
    """Return why these GPUs are the best for the process, and each fact about them that a user may not expect."""
    spec = request.visible_spec
    sentence = _best_of(decision, request) + _as_numbers(request.numbers) + _drawbacks(decision, request)
    sentence += _lists_without_effect(request.policy, spec, request.grant)
    # A job of an engine may use only the granted GPUs.
    if not request.grant.engine and (spec.value is not None or request.in_use):
        sentence += _idle_alternative(decision.idle_instead)
    sentence += _shortfall(decision, request)
    if request.wanted.count > 1:
        sentence += _instances_left(decision)
    if decision.is_at_cap:
        sentence += "; " + _at_cap(decision, request)
    return sentence


def _best_of(decision: Decision, request: SelectionRequest) -> str:
    spec = request.visible_spec
    grant = request.grant
    if not grant.engine or spec.is_scripts:
        pool = _listed_by(spec) + granted_fraction(grant)
    else:
        ended = ", in a job that seems to have ended" if grant.has_ended else ""
        pool = f" granted by {grant.engine}{ended}" + (
            f", {100 * grant.fraction:.0f} % of it" if grant.fraction else ""
        )
    total = len(decision.ranking.pool)
    count = len(decision.devices)
    if decision.reason is Reason.ONLY_ONE:
        pool = pool or _narrowed(request.policy, spec)
        lost = request.inventory.unreadable if pool == " here" else ()
        return f"the only one{pool}{_left_out(decision.ranking, lost)}"
    if decision.reason is Reason.ALL:
        return f"all {total}{pool}"
    if decision.reason is Reason.HAS_CONTEXT:
        return f"{count} of {total}{pool}, where another library of this process has a CUDA context"
    if decision.reason is Reason.NUMBERED:
        return f"{count} of {total}{pool}"
    best = "idlest" if decision.reason is Reason.IDLEST else "least busy"
    return f"the {best if count == 1 else f'{count} {best}'} of {total}{pool}"


def _listed_by(spec: VisibleSpec) -> str:
    whose = "the script's " if spec.is_scripts else ""
    return "" if spec.value is None else f" in {whose}CUDA_VISIBLE_DEVICES"


def _narrowed(policy: Policy, spec: VisibleSpec) -> str:
    # Read the policy and not the rejected GPUs: the list that autogpu wrote for CUDA no longer has the excluded ones.
    if policy.devices and spec.admits("select.devices", policy):
        return " of select.devices"
    return " that select.exclude leaves" if policy.exclude and spec.admits("select.exclude", policy) else " here"


def _left_out(ranking: Ranking, lost: Sequence[UnreadableDevice]) -> str:
    rejected = [each for each in ranking.rejected if each.cause in (Cause.TOO_SMALL, Cause.UNUSABLE)]
    reasons = [f"GPU {each.device.label} ({obstacle(each)})" for each in rejected]
    reasons += [f"GPU {each.index} ({printable(each.reason)})" for each in lost]
    return f"; left out: {some(reasons)}" if reasons else ""


def _drawbacks(decision: Decision, request: SelectionRequest) -> str:
    """Return which of the GPUs are shared, with whom, and which are not healthy."""
    taken = decision.taken
    shared = []
    unwell = []
    for each in taken:
        if each.tier is Tier.FREE and not each.is_awaited:
            unwell.append((each.device, listed(health_faults(each.device))))
        else:
            shared.append((each.device, candidate_state(each, request.own_pid)))
    text = ""
    for title, found in (("shared", shared), ("not healthy", unwell)):
        reasons = [state if len(taken) == 1 else f"GPU {device.label}: {state}" for device, state in found if state]
        if reasons:
            text += f" ({title}: {some(reasons)})"
    return text


def _as_numbers(numbers: Sequence[int]) -> str:
    """Name the ``numbers`` by which the script uses its GPUs; ``""`` if these are 0, 1 and so on."""
    if numbers == tuple(range(len(numbers))):
        return ""
    return f", as the script's number{'s' * (len(numbers) > 1)} {listed([str(number) for number in numbers])}"


def _lists_without_effect(policy: Policy, spec: VisibleSpec, grant: Grant) -> str:
    """Name the policy's lists that an inherited ``CUDA_VISIBLE_DEVICES`` overrides; ``""`` if it overrides none."""
    lists = {"select.devices": policy.devices, "select.exclude": policy.exclude}
    keys = [key for key, entries in lists.items() if entries and not spec.admits(key, policy)]
    if not keys:
        return ""
    inherited = f"what {grant.engine} granted" if grant.engine else "a list that is set already"
    return f", {listed(keys)} {'does' if len(keys) == 1 else 'do'} not apply to {inherited}"


def _idle_alternative(idle: Sequence[Device]) -> str:
    """Name idle GPUs for a user who named a busy one; ``""`` if there are none."""
    return f", busy while {labels(idle[:MOST])} {are(len(idle))} idle" if idle else ""


def _shortfall(decision: Decision, request: SelectionRequest) -> str:
    """Return why the process has fewer GPUs than it wants; ``""`` if it has all that it wants."""
    if decision.shortfall is None:
        return ""
    taken = len(decision.devices)
    reason = {
        Shortfall.ONE_INSTANCE: "a process can have one MIG instance, and there is no whole GPU for it",
        Shortfall.PER_USER_CAP: _cap_and_held(decision, request),
        Shortfall.SELECT_COUNT: f"select.count is {request.policy.count}",
        Shortfall.NO_MORE: "there are no more",
        Shortfall.BUSY: f"{taken} can be had now",
    }[decision.shortfall]
    named = request.wanted.named
    if named > taken:
        return f"; the script names {named}, {reason}: the others are logical GPUs on {'it' if taken == 1 else 'them'}"
    who = "the script" if request.wanted.by is WantedBy.SCRIPT else "select.count"
    return f"; {who} asks for {request.wanted.count}, {reason}"


def _instances_left(decision: Decision) -> str:
    """Name free MIG instances for a job of several GPUs that shares whole cards; ``""`` if there are none."""
    taken = decision.taken
    is_shared = any(each.is_best_effort for each in taken) and not any(each.device.parent for each in taken)
    candidates = decision.ranking.candidates
    free = [each.device.label for each in candidates if each.device.parent and each.tier is Tier.FREE]
    names = gpu_names(free[:MOST])
    return f"; {names} {are(len(free))} free, but several GPUs are whole cards" if free and is_shared else ""


def _cap_and_held(decision: Decision, request: SelectionRequest) -> str:
    allowed = f"limits.per_user allows {request.per_user}"
    return f"{allowed} and you hold {decision.held} already" if decision.held else allowed


def _at_cap(decision: Decision, request: SelectionRequest) -> str:
    cap = request.policy.per_user
    held = f"you hold {counted(decision.held, 'GPU')}"
    if decision.held > cap:
        return f"{held}, limits.per_user allows {cap}"
    return f"{held}, the most that limits.per_user allows"


def _why_none(decision: Decision, request: SelectionRequest) -> str:
    """Return why the process takes no GPU; if it waits, until when."""
    sentence = {
        Reason.PER_USER_CAP: _at_cap(decision, request),
        Reason.TOO_FEW_FREE: _too_few_free(decision),
        Reason.NONE_FREE: _none_free(decision, request),
    }[decision.reason]
    if decision.verdict is not Verdict.WAIT:
        return sentence
    wanted = request.wanted.count
    if decision.attainable < wanted < sys.maxsize:
        sentence += f"; {wanted} are asked for, there are no more than {decision.attainable}"
    if request.busy == "share":
        sentence += _until_it_shares(decision.ranking.candidates, request.wait_s - request.waited_s)
    return sentence


def _too_few_free(decision: Decision) -> str:
    free = decision.free
    missing = decision.waits_for - free
    return f"{decision.waits_for} GPUs wanted, {free} can be had now: waiting for {missing} more"


def _none_free(decision: Decision, request: SelectionRequest) -> str:
    ranking = decision.ranking
    reasons = [f"GPU {c.device.label}: {candidate_state(c, request.own_pid)}" for c in ranking.candidates]
    # List the GPUs in use first, because they may come free, and the GPUs that the policy excludes last.
    last = {Cause.IN_USE: 0, Cause.EXCLUDED_BY_POLICY: 2}
    rejected = sorted(ranking.rejected, key=lambda rejection: last.get(rejection.cause, 1))
    reasons += [f"GPU {r.device.label}: {obstacle(r)}" for r in rejected]
    is_busy = ranking.suitable or not ranking.rejected
    return f"{'no GPU is free' if is_busy else 'no GPU is suitable'} ({some(reasons)})"


def _until_it_shares(candidates: Sequence[Candidate], left_s: float) -> str:
    """Return when a waiting process will share a GPU; the text follows the reason why it takes none now."""
    end = f", for the next {span(left_s)} only if {_enough(candidates)}" if left_s > 0 else ""
    return f"; it shares a GPU once all jobs there have run for a minute{end}; to start now: AUTOGPU_WAIT=0"


def _enough(candidates: Sequence[Candidate]) -> str:
    """Return how much memory must be free on a GPU that the process joins."""
    first = next(iter(candidates), None)
    runs = first.last_runs if first else None
    if runs is None or any((each.last_runs, each.least_free_bytes) != (runs, runs.bytes) for each in candidates):
        return "enough of it is free"
    return f"{size(runs.bytes)} of it are free, as much as {took(runs)}"


def _why_fixed_order(decision: Decision, request: SelectionRequest) -> str:
    """Return why the framework takes the GPU that CUDA counts first, even if that one is busy."""
    busy = request.policy.busy
    effect = "" if busy == "share" else f', so that busy = "{busy}" has no effect'
    cap = f"; {_at_cap(decision, request)}" if decision.is_at_cap else ""
    idle = _idle_alternative(decision.idle_instead)
    return _NO_ORDER[decision.reason] + effect + _drawbacks(decision, request) + idle + cap


def _why_slice(decision: Decision, request: SelectionRequest) -> str:
    part = decision.slice
    assert part is not None
    rank = part.rank
    count = rank.size if rank.dividers is not None else max(part.ranks, rank.rank + 1)
    sentence = f"local rank {rank.rank} of {count} ({rank.launcher})"
    if part.sharers > 1:
        sentence += f", {part.sharers} ranks share it"
    return sentence + granted_fraction(request.grant)


def _why_parents(decision: Decision, request: SelectionRequest) -> str:
    parent = decision.parent
    assert parent is not None
    return f"shared with its parent process, {parent.script} (pid {parent.pid})"


_RENDERERS: Mapping[Reason, Callable[[Decision, SelectionRequest], str]] = {
    Reason.PER_USER_CAP: _why_none,
    Reason.TOO_FEW_FREE: _why_none,
    Reason.NONE_FREE: _why_none,
    Reason.COUNTED_BEFORE: _why_fixed_order,
    Reason.WORKERS_NUMBER: _why_fixed_order,
    Reason.LOCAL_RANK: _why_slice,
    Reason.PARENT: _why_parents,
    Reason.CHOSEN_BY_SCRIPT: lambda decision, _: "chosen by the script" + _idle_alternative(decision.idle_instead),
    Reason.NOT_GRANTED: lambda _, request: "; ".join(denial(request.grant)),
    Reason.NO_DEVICE: lambda _, request: no_device(request.inventory),
    Reason.DRIVER_FAILURE: lambda _, request: request.inventory.failure or "",
    Reason.UNREADABLE: lambda _, request: (
        f"NVML can't read any of the GPUs ({unreadable(request.inventory.unreadable)})"
    ),
}
