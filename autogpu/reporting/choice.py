"""Sentences about a choice: why a process has its GPUs, or none, and what would change that."""

from __future__ import annotations

import sys
from typing import Callable, Iterable, Iterator, Mapping, Sequence

from autogpu.devices.model import Device
from autogpu.engines.model import Grant
from autogpu.policy.model import Policy, Resolved
from autogpu.reporting.engines import denial, fraction_of_gpus, granted_fraction
from autogpu.reporting.gpus import (
    AWAITED,
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
    users,
)
from autogpu.reporting.memory import cap_notes, demanded, reserved, suggested_need, took
from autogpu.reporting.policy import origins
from autogpu.selection.decision import Decision, IdleWay, Reason, Shortfall, Verdict
from autogpu.selection.model import Candidate, Cause, LastRuns, Obstacle, SelectionRequest, Tier, VisibleSpec, WantedBy
from autogpu.text import counted, first_fitting, listed, printable, size, span, with_notes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.frameworks.model import Usage
    from autogpu.history import KnownNeed

DISABLED = "autogpu is switched off"
COUNT_IS_ZERO = "select.count is 0"

# Texts that are the same for every request.
_REASONS = {
    Reason.COUNT_IS_ZERO: COUNT_IS_ZERO,
    Reason.DISABLED: DISABLED,
    Reason.COUNTS_DIFFER: "the CUDA driver and the framework see different numbers of GPUs",
    Reason.ONLY_CUDA_KNOWS: "autogpu can't resolve the numbers in CUDA_VISIBLE_DEVICES",
    Reason.UNREADABLE: "NVML can't read any of the GPUs",
    Reason.CHOSEN_BY_SCRIPT: "chosen by the script",
    Reason.COUNTED_BEFORE: "CUDA was initialised before autogpu could choose",
    Reason.WORKERS_NUMBER: "the worker process chose the GPU itself",
}

_IDLE_WAYS = {
    IdleWay.OVERRIDE_SCRIPT: "AUTOGPU_SCRIPT=override",
    IdleWay.UNSET_LIST: "unset CUDA_VISIBLE_DEVICES",
    IdleWay.HOLD_FIRST: "start the program as `autogpu run --hold COMMAND`",
}


def why(decision: Decision, *, with_cap: bool = False) -> str:
    """Return why a process has its GPUs, or has none, and all :func:`notes` on that, in one line.

    Args:
        with_cap: True to add how much memory the process may allocate, if it is a best-effort job.
    """
    return "; ".join([reason(decision), *notes(decision, cap_notes(decision) if with_cap else ())])


def reason(decision: Decision) -> str:
    """Return why a process has its GPUs, or has none, in a few words."""
    request = decision.request
    if request is None:
        return _REASONS[decision.reason]
    text = _REASONS.get(decision.reason) or _REASONS_WITH_FACTS.get(decision.reason, _best_of)(decision, request)
    if request.waited_s >= 1 and decision.verdict is not Verdict.WAIT:
        text += f", after {span(request.waited_s)} of waiting"
    if decision.script_numbers:
        text += f", {listed([f'cuda:{index}' for index in decision.script_numbers])} in the script"
    return text


def notes(decision: Decision, on_claim: Iterable[str] = ()) -> list[str]:
    """Return the notes on the GPUs, the most important first: facts that the user needs or would not expect.

    Args:
        on_claim: Notes on the memory that the process claims, to insert after the note on free GPUs.
    """
    request = decision.request
    if request is None:
        return [*on_claim]
    found = _NOTES.get(decision.reason, _notes_on_taken)(decision, request)
    # A rank or a child process has the GPUs of its job: the job's first process reports it if these are too few.
    shortfall = "" if decision.reason in _NOTES else _shortfall(decision, request)
    return [note for note in (*_idle_alternative(decision, request), shortfall, *on_claim, *found) if note]


def idle_remedy(decision: Decision) -> str:
    """Return the setting that gives the process a free GPU instead of a busy one; ``""`` if there is none."""
    return "" if decision.idle_way is None else f"to use the idlest GPU: {_IDLE_WAYS[decision.idle_way]}"


def busy_remedy(decision: Decision) -> str:
    """Return the ``select.busy`` settings that would give a GPU to a process that stops because none is free."""
    ways = ((decision.ranking.suitable, "wait for one", "wait"), (decision.ranking.candidates, "share one", "share"))
    remedies = [f"to {what}: AUTOGPU_BUSY={busy}" for gpus, what, busy in ways if gpus]
    return "; ".join(remedies) or "`autogpu status --explain` shows the obstacle on each GPU"


def outcome(
    decision: Decision,
    usage: Usage,
    resolved: Resolved,
    framework: str,
    task: str = "",
    need: KnownNeed | None = None,
) -> list[str]:
    """Return the lines about the GPUs that a framework takes: usually one, and a second one if there are notes.

    Each line fits 120 columns. At the level ``explain`` there are more lines, of any length.

    Args:
        task: The engine's name for this process. An engine's log may contain the lines of many processes.
        need: The memory need that the last runs suggest; ``None`` if there is no suggestion.
    """
    if not usage.ordinals and not decision.is_ours:
        return []  # the script itself hid every GPU
    devices = decision.at(usage.ordinals)
    if resolved.policy.level == "quiet" and not decision.misses_gpu:
        return []
    found = notes(decision, [*cap_notes(decision, need), *reserved(decision)])
    if devices and need is not None and not decision.is_capped_by_others:
        found.append(suggested_need(need))
    if not usage.ordinals:
        return _outcome_on_cpu(decision, found, resolved, framework, task)
    memory = f"memory {usage.memory}"
    if not devices:
        # autogpu could not identify the GPUs: print the whole message, even if it exceeds 120 columns.
        used = counted(len(usage.ordinals), "GPU")
        return [f"{used} used, not chosen by autogpu: {reason(decision)}; {memory}", *found]
    return _outcome_on_gpus(decision, devices, memory, found, resolved, task)


def _outcome_on_cpu(
    decision: Decision, found: Sequence[str], resolved: Resolved, framework: str, task: str
) -> list[str]:
    policy = f"policy: {origins(resolved)}"
    end = f", {framework} starts on CPU: {reason(decision)}"
    heads = [f"no GPU for {task or 'this process'}{end}", f"no GPU{end}"]
    if resolved.policy.level == "explain":
        return [heads[0], *found, policy, *each_gpu(decision)]
    return with_notes([first_fitting(heads) or heads[1], policy], found)


def _outcome_on_gpus(
    decision: Decision, devices: Sequence[Device], memory: str, found: Sequence[str], resolved: Resolved, task: str
) -> list[str]:
    whose = f" for {task}" if task else ""
    because = reason(decision)
    heads = [f"{gpus}{whose}: {because}" for gpus in forms_of_gpus(devices)]
    if resolved.policy.level == "explain":
        lines = [f"{heads[0]}; {memory}", *found]
        if len(devices) < decision.attainable:
            lines.append(f"for more GPUs: AUTOGPU_COUNT={len(devices) + 1}")
        return [*lines, f"policy: {origins(resolved)}", *each_gpu(decision, devices)]
    line = first_fitting([f"{head}; {memory}" for head in heads])
    return with_notes([line], found) if line else with_notes([first_fitting(heads) or heads[-1]], [memory, *found])


def forms_of_gpus(devices: Sequence[Device]) -> list[str]:
    """Return the GPUs of a process in several forms, the longest first: with name and free memory, then with less."""
    forms = [
        listed([f"GPU {d.label} ({printable(d.name, 64)}, {free_memory(d)})" for d in devices]),
        listed([f"GPU {d.label} ({free_memory(d)})" for d in devices]),
        labels(devices),
    ]
    return forms if len(devices) == 1 else [*forms, f"{len(devices)} GPUs ({', '.join(d.label for d in devices)})"]


# Why a process has its GPUs


def _best_of(decision: Decision, request: SelectionRequest) -> str:
    total = len(decision.ranking.pool)
    count = len(decision.devices)
    pool = _pool(request, count)
    numbers = _as_numbers(request.numbers)
    best = "idlest" if decision.reason is Reason.IDLEST else "least busy"
    text = f"the {best if count == 1 else f'{count} {best}'} of {total}{pool}"
    if decision.reason is Reason.ONLY_ONE:
        text = f"the only one{pool or _narrowed(request.policy, request.visible_spec)}"
    elif decision.reason is Reason.ALL:
        text = f"{'both' if total == 2 else f'all {total}'}{pool}"
    elif decision.reason is Reason.HAS_CONTEXT:
        them = "it" if count == 1 else "them"
        return f"{count} of {total}{pool}{numbers}, because another library in this process already uses {them}"
    elif decision.reason is Reason.NUMBERED:
        text = f"{count} of {total}{pool}"
    return text + numbers


def _pool(request: SelectionRequest, count: int) -> str:
    """Return what limits the pool, ``CUDA_VISIBLE_DEVICES`` or an engine; ``""`` if neither does."""
    grant = request.grant
    if not grant.engine or request.visible_spec.is_scripts:
        return _listed_by(request.visible_spec) + granted_fraction(grant, count)
    ended = ", in a job that seems to have ended" if grant.has_ended else ""
    return f" granted by {grant.engine}{ended}{fraction_of_gpus(grant, count)}"


def _listed_by(spec: VisibleSpec) -> str:
    whose = "the script's " if spec.is_scripts else ""
    return "" if spec.value is None else f" in {whose}CUDA_VISIBLE_DEVICES"


def _narrowed(policy: Policy, spec: VisibleSpec) -> str:
    # Read the policy, not the rejected GPUs: if autogpu wrote CUDA_VISIBLE_DEVICES, the excluded GPUs are missing
    # from it.
    if policy.devices and spec.admits("select.devices", policy):
        return " of select.devices"
    return " that select.exclude leaves" if policy.exclude and spec.admits("select.exclude", policy) else " here"


def _as_numbers(numbers: Sequence[int]) -> str:
    """Return the ``numbers`` by which the script uses its GPUs; ``""`` if these are 0, 1 and so on."""
    if numbers == tuple(range(len(numbers))):
        return ""
    return f", numbered {listed([str(number) for number in numbers])} in the script"


def _why_slice(decision: Decision, request: SelectionRequest) -> str:
    part = decision.slice
    assert part is not None
    rank = part.rank
    count = rank.size if rank.dividers is not None else max(part.ranks, rank.rank + 1)
    text = f"local rank {rank.rank} of {count} ({rank.launcher})"
    if part.sharers > 1:
        text += f", {part.sharers} ranks share it"
    return text + granted_fraction(request.grant, len(decision.devices))


def _why_parents(decision: Decision, request: SelectionRequest) -> str:
    parent = decision.parent
    assert parent is not None
    return f"shared with the parent process, {parent.script} (pid {parent.pid})"


# Notes on taken GPUs


def _notes_on_taken(decision: Decision, request: SelectionRequest) -> Iterator[str]:
    spec = request.visible_spec
    yield _shared_with(decision, request)
    yield _awaited(decision)
    yield _not_healthy(decision)
    if decision.is_fixed and request.policy.busy != "share":
        yield f'select.busy = "{request.policy.busy}" has no effect: autogpu did not choose the GPU'
    if decision.taken:
        yield _lists_without_effect(request.policy, spec, request.grant)
    if request.wanted.count > 1:
        yield _instances_left(decision)
    if decision.is_at_cap:
        yield _at_cap(decision, request)
    if decision.reason is Reason.ONLY_ONE:
        yield _left_out(decision, request)


def _shared_with(decision: Decision, request: SelectionRequest) -> str:
    """Return with whom the process shares its GPUs."""
    taken = decision.taken
    shared = [each for each in taken if each.tier is not Tier.FREE and not each.is_awaited]
    states = [users(each, request.own_pid) for each in shared]
    if len(taken) > 1:
        states = [f"GPU {each.device.label}: {state}" for each, state in zip(shared, states)]
    return f"shared: {some(states)}" if states else ""


def _awaited(decision: Decision) -> str:
    """Return which GPUs of the process a job in the queue waits for; ``""`` if there are none."""
    awaited = [each.device.label for each in decision.taken if each.is_awaited]
    if not awaited:
        return ""
    return AWAITED if len(decision.taken) == 1 else f"jobs in the queue wait for {gpu_names(awaited[:MOST])}"


def _not_healthy(decision: Decision) -> str:
    faults = [f"GPU {each.device.label}: {listed(health_faults(each.device))}" for each in decision.taken]
    faults = [fault for fault in faults if not fault.endswith(": ")]
    return f"not healthy, tell the administrator: {some(faults)}" if faults else ""


def _idle_alternative(decision: Decision, request: SelectionRequest) -> Iterator[str]:
    """Yield a note on the free GPUs, and the setting that uses them, if the user chose a busy GPU."""
    idle = decision.idle_instead
    # A job of an engine may use only the granted GPUs.
    is_users_choice = not request.grant.engine and (request.visible_spec.value is not None or request.in_use)
    if idle and decision.reason not in _NOTES and (is_users_choice or decision.is_fixed):
        yield f"{labels(idle[:MOST])} {are(len(idle))} free"
        yield idle_remedy(decision)


def _lists_without_effect(policy: Policy, spec: VisibleSpec, grant: Grant) -> str:
    """Return the lists of the policy that an inherited ``CUDA_VISIBLE_DEVICES`` overrides; ``""`` if there are none."""
    lists = {"select.devices": policy.devices, "select.exclude": policy.exclude}
    keys = [key for key, entries in lists.items() if entries and not spec.admits(key, policy)]
    if not keys:
        return ""
    why_not = f"{grant.engine} granted the GPUs" if grant.engine else "CUDA_VISIBLE_DEVICES is set"
    return f"{listed(keys)} {'has' if len(keys) == 1 else 'have'} no effect: {why_not}"


def _shortfall(decision: Decision, request: SelectionRequest) -> str:
    """Return why the process has fewer GPUs than it wants; ``""`` if it has all that it wants."""
    if decision.shortfall is None:
        return ""
    taken = len(decision.devices)
    why_fewer = {
        Shortfall.ONE_INSTANCE: "a process can use only one MIG instance, and no whole GPU is left",
        Shortfall.PER_USER_CAP: _cap_and_held(decision, request),
        Shortfall.SELECT_COUNT: f"select.count is {request.policy.count}",
        Shortfall.NO_MORE: f"only {taken} {are(taken)} available",
        Shortfall.BUSY: f"only {taken} {are(taken)} free",
    }[decision.shortfall]
    named = request.wanted.named
    if named > taken:
        logical = f"the others become logical GPUs on the same card{'s' * (taken > 1)}"
        return f"the script uses {named} GPUs, but {why_fewer}: {logical}"
    who = "the script" if request.wanted.by is WantedBy.SCRIPT else "select.count"
    return f"{who} asks for {request.wanted.count} GPUs, but {why_fewer}"


def _instances_left(decision: Decision) -> str:
    """Return which MIG instances are free, for a job of several GPUs that shares whole cards; ``""`` if none is."""
    taken = decision.taken
    is_shared = any(each.is_best_effort for each in taken) and not any(each.device.parent for each in taken)
    candidates = decision.ranking.candidates
    free = [each.device.label for each in candidates if each.device.parent and each.tier is Tier.FREE]
    if not free or not is_shared:
        return ""
    return f"{gpu_names(free[:MOST])} {are(len(free))} free, but a process can use only one MIG instance"


def _left_out(decision: Decision, request: SelectionRequest) -> str:
    """Return which GPUs of the machine the process can't use, if that leaves only one."""
    spec = request.visible_spec
    is_machine = spec.value is None and not request.grant.engine and _narrowed(request.policy, spec) == " here"
    rejected = [each for each in decision.ranking.rejected if each.cause in (Cause.TOO_SMALL, Cause.UNUSABLE)]
    found = [f"GPU {each.device.label} ({obstacle(each)})" for each in rejected]
    found += [f"GPU {each.index} ({printable(each.reason)})" for each in request.inventory.unreadable * is_machine]
    return f"left out: {some(found)}" if found else ""


def _cap_and_held(decision: Decision, request: SelectionRequest) -> str:
    allowed = f"the host's limits.per_user allows {request.per_user}"
    return f"{allowed} and you hold {decision.held} already" if decision.held else allowed


def _at_cap(decision: Decision, request: SelectionRequest) -> str:
    return f"you hold {counted(decision.held, 'GPU')}, limits.per_user allows {request.policy.per_user}"


# Why a process has no GPU


def _why_none(decision: Decision, request: SelectionRequest) -> str:
    ranking = decision.ranking
    if ranking.rejected and not ranking.suitable:
        return "no GPU is suitable"
    is_need = not ranking.candidates and any(each.obstacle is Obstacle.NEED_ABOVE_FREE for each in ranking.rejected)
    return f"no GPU has {demanded(request)} left" if is_need else "no GPU is free"


def _too_few_free(decision: Decision, request: SelectionRequest) -> str:
    count = decision.free
    free = sum(each.tier is Tier.FREE and not each.is_awaited for each in decision.ranking.candidates)
    # The process could take some of the GPUs although other jobs use them.
    return f"{count} of the {decision.waits_for} GPUs {are(count)} {'free' if free >= count else 'available'}"


def _notes_on_none(decision: Decision, request: SelectionRequest) -> Iterator[str]:
    if decision.verdict is Verdict.WAIT:
        if request.busy == "share":
            yield from _until_it_shares(decision, request)
        wanted = request.wanted.count
        why_fewer = f"this job can get at most {decision.attainable}"
        if decision.shortfall is Shortfall.PER_USER_CAP:
            why_fewer = _cap_and_held(decision, request)
        if (decision.attainable < wanted or decision.shortfall) and wanted < sys.maxsize:
            yield f"{wanted} GPUs are requested, but {why_fewer}"
    if decision.reason is Reason.NONE_FREE:
        yield some(_each_in_the_way(decision, request))


def _each_in_the_way(decision: Decision, request: SelectionRequest) -> list[str]:
    ranking = decision.ranking
    found = [f"GPU {c.device.label}: {candidate_state(c, request.own_pid)}" for c in ranking.candidates]
    # List the GPUs in use first, because they may come free, and the GPUs that the policy excludes last.
    last = {Cause.IN_USE: 0, Cause.EXCLUDED_BY_POLICY: 2}
    rejected = sorted(ranking.rejected, key=lambda rejection: last.get(rejection.cause, 1))
    return found + [f"GPU {r.device.label}: {obstacle(r)}" for r in rejected]


def _until_it_shares(decision: Decision, request: SelectionRequest) -> Iterator[str]:
    """Yield when a waiting process will share a GPU, and how to share one at once."""
    runs = _runs_that_count(decision.ranking.candidates)
    left_s = request.wait_s - request.waited_s
    enough = size(runs.bytes) if runs else "enough" if request.demand.is_whole else demanded(request)
    until = f" (the next {span(left_s)} only if {enough} is free)" if left_s > 0 else ""
    now = "to start now: AUTOGPU_WAIT=0"
    shares = "shares a GPU whose jobs have run 1 min"
    yield first_fitting([f"{shares}{until}; {now}", f"{shares}; {now}"])
    if runs and left_s > 0:
        yield took(runs)


def _runs_that_count(candidates: Sequence[Candidate]) -> LastRuns | None:
    """Return the last runs if all candidates have the same ones, of at least a quarter of each GPU; else ``None``."""
    first = next(iter(candidates), None)
    runs = first.last_runs if first else None
    if runs is None or any((each.last_runs, each.least_free_bytes) != (runs, runs.bytes) for each in candidates):
        return None
    return runs


_REASONS_WITH_FACTS: Mapping[Reason, Callable[[Decision, SelectionRequest], str]] = {
    Reason.PER_USER_CAP: _at_cap,
    Reason.TOO_FEW_FREE: _too_few_free,
    Reason.NONE_FREE: _why_none,
    Reason.LOCAL_RANK: _why_slice,
    Reason.PARENT: _why_parents,
    Reason.NOT_GRANTED: lambda _, request: denial(request.grant)[0],
    Reason.NO_DEVICE: lambda _, request: no_device(request.inventory),
    Reason.DRIVER_FAILURE: lambda _, request: request.inventory.failure or "",
}

_NOTES: Mapping[Reason, Callable[[Decision, SelectionRequest], Iterable[str]]] = {
    Reason.PER_USER_CAP: _notes_on_none,
    Reason.TOO_FEW_FREE: _notes_on_none,
    Reason.NONE_FREE: _notes_on_none,
    Reason.LOCAL_RANK: lambda *_: [],
    Reason.PARENT: lambda *_: [],
    Reason.COUNT_IS_ZERO: lambda *_: [],
    Reason.NOT_GRANTED: lambda _, request: [denial(request.grant)[1]],
    Reason.ONLY_CUDA_KNOWS: lambda *_: [
        "CUDA numbers the fastest GPU first unless CUDA_DEVICE_ORDER=PCI_BUS_ID",
        "to name GPUs unambiguously: CUDA_DEVICE_ORDER=PCI_BUS_ID, or UUIDs in CUDA_VISIBLE_DEVICES",
    ],
    Reason.UNREADABLE: lambda _, request: [unreadable(request.inventory.unreadable)],
}
