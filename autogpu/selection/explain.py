"""The sentences of a decision: why these GPUs, why not the others, and what would change it. Pure."""

from __future__ import annotations

from typing import Any, Callable, Collection, Iterable, Sequence

from autogpu.devices.model import Device, Inventory, UnreadableDevice
from autogpu.frozen import replace
from autogpu.policy.model import Policy
from autogpu.selection.grants import Grant
from autogpu.selection.jobs import unmanaged_processes
from autogpu.selection.model import Candidate, Cause, Claim, Decision, Ranking, SelectionRequest, Tier, VisibleSpec
from autogpu.selection.ranks import LocalRank
from autogpu.text import GIB, counted, listed, printable, size, span

NO_UUIDS = "the CUDA driver and the framework count different GPUs"
SWITCHED_OFF = "autogpu is switched off"
ONLY_CUDA_CAN_TELL = (
    "only CUDA can tell which GPUs CUDA_VISIBLE_DEVICES names, for it counts the fastest first; "
    "with CUDA_DEVICE_ORDER=PCI_BUS_ID, or with UUIDs, it is certain"
)
COUNT_IS_ZERO = "select.count is 0"
AWAITED = "a job in the queue waits for it"
NOT_AMONG, EXCLUDED = "not among select.devices", "excluded by select.exclude"
OVERRIDE = "to have the idlest instead: AUTOGPU_SCRIPT=override"
CHOSEN_BY_SCRIPT = "chosen by the script"
COUNTED_BEFORE = "CUDA had counted the GPUs before autogpu could choose"
ONLY_THE_WORKER_KNOWS = "one of them, by a number that only this worker process knows"
BEST_EFFORT = "limited to what is free there; say what you need: AUTOGPU_NEED=6GiB"
BEST_EFFORT_OF_SIZE = "limited to what is free there, whatever it asks for"

# In one line of a message; ``autogpu status`` shows each.
_MOST = 3


def gpu_names(labels: Iterable[object]) -> str:
    """``GPU 2``, ``GPU 2 and GPU 3``, ``GPU 2, GPU 3 and GPU 0:1``."""
    return listed([f"GPU {label}" for label in labels])


def free_memory(device: Device) -> str:
    free, total = device.memory_free_bytes, device.memory_total_bytes
    if free is None or total is None:
        return "memory unknown"
    return f"{free / GIB:.1f} of {size(total)} free"


def occupancy(device: Device, claims: Sequence[Claim] = (), own_pid: int | None = None) -> str:
    """The readings that decide, in words: ``pid 4242 on it without a claim, 93 % busy, 8.5 of 11.0 GiB free``."""
    parts = [*device.health_problems]
    if claims:
        parts.append("claimed by " + _and_more(claims, _holder_name))
    unmanaged = [process.pid for process in unmanaged_processes(device, claims, own_pid)]
    if unmanaged:
        parts.append(f"{'pid' if len(unmanaged) == 1 else 'pids'} {_and_more(unmanaged)} on it without a claim")
    busy = device.utilization_percent
    parts.append("utilization unknown" if busy is None else f"{busy} % busy")
    return ", ".join([*parts, free_memory(device)])


def too_full(wanted_bytes: int, total_bytes: int, usable_bytes: int) -> str:
    if usable_bytes <= 0 and wanted_bytes <= total_bytes:
        return f"{size(wanted_bytes)} do not fit: everything is used or claimed"
    has = f"it has {size(total_bytes)}" if wanted_bytes > total_bytes else f"{size(usable_bytes)} are left"
    return f"{size(wanted_bytes)} do not fit, {has}"


def taken(ranking: Ranking, chosen: Sequence[Candidate], request: SelectionRequest, kept: Collection[str] = ()) -> str:
    """Why these candidates were taken; those that are ``kept``, by UUID, were taken however idle others are."""
    total, count, spec, grant = len(ranking.pool), len(chosen), request.visible_spec, request.grant
    if not grant.engine or spec.is_scripts:
        pool = _named_by(spec) + granted_part(grant)
    else:
        pool = f" granted by {grant.engine}" + (f", {100 * grant.fraction:.0f} % of it" if grant.fraction else "")
    best = "idlest" if chosen[-1].tier is Tier.FREE else "least busy"
    if total == 1:
        pool = pool or _narrowed(request.policy, spec)
        why = f"the only one{pool}{_left_out(ranking, request.inventory.unreadable if pool == ' here' else ())}"
    elif count == total:
        why = f"all {total}{pool}"
    elif any(candidate.device.uuid in kept for candidate in chosen):
        is_in_use = any(candidate.device.uuid in request.uuids_in_use for candidate in chosen)
        why = f"{count} of {total}{pool}"
        why += ", where another library of this process has a CUDA context" if is_in_use else ""
    else:
        why = f"the {best if count == 1 else f'{count} {best}'} of {total}{pool}"
    return why + _as_numbers(request.numbers) + drawbacks(chosen)


def _named_by(spec: VisibleSpec) -> str:
    whose = "the script's " if spec.is_scripts else ""
    return "" if spec.value is None else f" in {whose}CUDA_VISIBLE_DEVICES"


def _narrowed(policy: Policy, spec: VisibleSpec) -> str:
    # Not by what was rejected: a process that lists its GPUs before CUDA counts them has left out those already.
    if policy.devices and spec.admits("select.devices", policy):
        return " of select.devices"
    return " that select.exclude leaves" if policy.exclude and spec.admits("select.exclude", policy) else " here"


def _left_out(ranking: Ranking, lost: Sequence[UnreadableDevice]) -> str:
    rejected = [each for each in ranking.rejected if each.cause in (Cause.TOO_SMALL, Cause.UNUSABLE)]
    reasons = [f"GPU {each.device.label} ({each.why})" for each in rejected]
    reasons += [f"GPU {each.index} ({printable(each.reason)})" for each in lost]
    return f"; left out: {_some(reasons)}" if reasons else ""


def drawbacks(taken: Sequence[Candidate]) -> str:
    shared = [(c.device, c.why) for c in taken if c.tier is not Tier.FREE]
    unwell = [(c.device, listed(c.device.health_problems)) for c in taken if c.tier is Tier.FREE]
    text = ""
    for title, found in (("shared", shared), ("not healthy", unwell)):
        reasons = [why if len(taken) == 1 else f"GPU {device.label}: {why}" for device, why in found if why]
        text += f" ({title}: {_some(reasons)})" if reasons else ""
    return text


def _some(reasons: Sequence[str]) -> str:
    if len(reasons) > _MOST:
        reasons = [*reasons[: _MOST - 1], f"and {len(reasons) - _MOST + 1} more"]
    return "; ".join(reasons)


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _as_numbers(numbers: Sequence[int]) -> str:
    """Name the ``numbers`` by which the script uses its GPUs; ``""`` if these are 0, 1 and so on."""
    if numbers == tuple(range(len(numbers))):
        return ""
    return f", as the script's number{'s' * (len(numbers) > 1)} {listed([str(number) for number in numbers])}"


def shortfall(request: SelectionRequest, taken: int, quota: int, *, is_instance: bool = False) -> str:
    """Why the process has fewer GPUs than it asks for, to follow why it has those; ``""`` if it has all."""
    wanted, named = request.wanted_count, len(request.numbers) or request.named_count
    if taken >= max(wanted, named) or (request.policy.count == "all" and not named):
        return ""
    reasons = (
        (is_instance, "a process can have one MIG instance, and there is no whole GPU for it"),
        (quota < wanted, f"limits.per_user allows {request.policy.per_user}"),
        (taken >= wanted, f"select.count is {request.policy.count}"),
        (len(request.uuids or ()) <= taken, "there are no more"),
        (True, f"{taken} can be had now"),
    )
    reason = next(words for is_so, words in reasons if is_so)
    if named > taken:
        return f"; the script names {named}, {reason}: the others are logical GPUs on {'it' if taken == 1 else 'them'}"
    return f"; select.count asks for {wanted}, {reason}"


def instances_left(ranking: Ranking, taken: Sequence[Candidate]) -> str:
    """Tell that a job of several GPUs shares whole cards although a MIG instance is free; ``""`` where it does not."""
    is_shared = any(each.is_best_effort for each in taken) and not any(each.device.parent for each in taken)
    free = [each.device.label for each in ranking.candidates if each.device.parent and each.tier is Tier.FREE]
    names = gpu_names(free[:_MOST])
    return f"; {names} {_are(len(free))} free, but several GPUs are whole cards" if free and is_shared else ""


def quota_reached(per_user: int) -> str:
    return f"you hold {counted(per_user, 'GPU')}, the most that limits.per_user allows"


def until_it_shares(left_s: float) -> str:
    """When a process that waits will share a GPU, to follow why it takes none now."""
    end = f", for the next {span(left_s)} only where enough of it is free" if left_s > 0 else ""
    return f"; it shares a GPU once all jobs there have run for a minute{end}; to start now: AUTOGPU_WAIT=0"


def waiting_for_more(wanted: int, free: int) -> str:
    return f"{wanted} GPUs wanted, {free} {_are(free)} free: waiting for {wanted - free} more"


def busy_remedy(decision: Decision) -> str:
    """Name each ``select.busy`` that gives a GPU to a process which stops for want of one."""
    ways = ((decision.ranking.suitable, "wait for one", "wait"), (decision.ranking.candidates, "share one", "share"))
    remedies = [f"to {what}, AUTOGPU_BUSY={busy}" for gpus, what, busy in ways if gpus]
    return "; ".join(remedies) or "`autogpu status --explain` shows what keeps it from each GPU"


def none_taken(candidates: Sequence[Candidate], ranking: Ranking) -> str:
    reasons = [f"GPU {c.device.label}: {c.why}" for c in candidates]
    # Those that may come free, then those that never will, and those last that nobody has asked for.
    last = {Cause.IN_USE: 0, Cause.EXCLUDED_BY_POLICY: 2}
    rejected = sorted(ranking.rejected, key=lambda rejection: last.get(rejection.cause, 1))
    reasons += [f"GPU {r.device.label}: {r.why}" for r in rejected]
    is_busy = ranking.suitable or not ranking.rejected
    return f"{'no GPU is free' if is_busy else 'no GPU is suitable'} ({_some(reasons)})"


def unreadable(lost: Sequence[UnreadableDevice]) -> str:
    return _some([f"GPU {each.index}: {each.reason}" for each in lost])


def no_device(inventory: Inventory) -> str:
    if inventory.devices:
        return "CUDA_VISIBLE_DEVICES hides every GPU"
    if inventory.unreadable:
        return f"no GPU can be read ({unreadable(inventory.unreadable)})"
    return "no GPU here"


def idle_alternative(idle: Sequence[Device]) -> str:
    """Tell a user who named a busy GPU which others are idle; ``""`` where none is."""
    names = gpu_names(device.label for device in idle[:_MOST])
    return f", busy while {names} {_are(len(idle))} idle" if idle else ""


def lists_without_effect(policy: Policy, spec: VisibleSpec, grant: Grant) -> str:
    """That lists of the policy don't count beside the one that is inherited; ``""`` where there are none."""
    lists = {"select.devices": policy.devices, "select.exclude": policy.exclude}
    keys = [key for key, entries in lists.items() if entries and not spec.admits(key, policy)]
    where = f"what {grant.engine} granted" if grant.engine else "a list that is set already"
    return f", {listed(keys)} {'does' if len(keys) == 1 else 'do'} not apply to {where}" if keys else ""


def order_is_fixed(policy: Policy, *, is_worker: bool) -> str:
    """Why a framework takes what CUDA counts first, also where it is busy and the policy would have it wait."""
    effect = "" if policy.busy == "share" else f', so that busy = "{policy.busy}" has no effect'
    return (ONLY_THE_WORKER_KNOWS if is_worker else COUNTED_BEFORE) + effect


def granted_part(grant: Grant) -> str:
    """That an engine granted a part of each GPU; ``""`` where it granted all of it."""
    return f", {100 * grant.fraction:.0f} % of it granted by {grant.engine}" if grant.fraction else ""


def after_wait(decision: Decision, waited_s: float) -> Decision:
    """``decision`` with how long the process waited for it, from a second on."""
    return replace(decision, why=f"{decision.why}, after {span(waited_s)} of waiting") if waited_s >= 1 else decision


def slice_taken(rank: LocalRank, sharers: int, ranks: int) -> str:
    """Why a local rank takes its GPUs, which so many of all ``ranks`` have."""
    count = rank.size if rank.dividers is not None else max(ranks, rank.rank + 1)
    why = f"local rank {rank.rank} of {count} ({rank.launcher})"
    return why if sharers == 1 else f"{why}, {sharers} ranks share it"


def each_gpu(
    ranking: Ranking, chosen: Sequence[Device], inventory: Inventory | None, first: str = "taken"
) -> list[str]:
    """Every GPU of the pool and why it was taken (``first``) or not, one line each, best first."""
    found = []
    for number, candidate in enumerate(ranking.candidates, start=1):
        state = candidate.tier.name.lower().replace("_", " ")
        found.append((candidate.device, f"place {number}", f"{state}, {candidate.why}"))
    found += [(rejection.device, "not eligible", rejection.why) for rejection in ranking.rejected]
    lines = [f"GPU {d.label}: {first if d in chosen else verdict}: {why}" for d, verdict, why in found]
    if inventory is not None:
        lines += [f"GPU {lost.index}: not readable: {lost.reason}" for lost in inventory.unreadable]
    return [printable(f"  {line}") for line in lines]


def _holder_name(claim: Claim) -> str:
    return (printable(claim.script, 80) or "a job") + (f" (pid {claim.pids[0]})" if claim.pids else "")


def _and_more(things: Sequence[Any], name: Callable[[Any], str] = str) -> str:
    more = f" and {len(things) - _MOST} more" if len(things) > _MOST else ""
    return ", ".join(map(name, things[:_MOST])) + more
