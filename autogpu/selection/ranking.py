"""Which GPU is best for a job, and why not the others. Pure."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from autogpu.reporting.text import GIB, listed
from autogpu.selection import explain, instances
from autogpu.selection.health import memory_faults
from autogpu.selection.memory import memory_demand
from autogpu.selection.model import Candidate, Cause, Ranking, Rejection, SelectionRules, Tier
from autogpu.selection.occupancy import other_processes, room_bytes, tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Mapping, Sequence

    from autogpu.devices.model import Device
    from autogpu.policy import Policy
    from autogpu.selection.model import Claim, MemoryDemand, VisibleSpec


def rules_for(
    policy: Policy, spec: VisibleSpec, own_pid: int | None, demand: MemoryDemand | None = None
) -> SelectionRules:
    """What the policy says inside a pool: the user's list wins over ours unless ours is locked.

    Args:
        demand: What the process claims; ``None`` leaves it to the policy.
    """
    return SelectionRules(
        devices=policy.devices if spec.admits("select.devices", policy) else (),
        exclude=policy.exclude if spec.admits("select.exclude", policy) else (),
        demand=demand or memory_demand(policy),
        own_pid=own_pid,
        refuses_faulty=policy.faulty == "never" and spec.admits("select.faulty", policy),
    )


def rank(
    devices: Iterable[Device], rules: SelectionRules, claims_on: Mapping[str, Sequence[Claim]] | None = None
) -> Ranking:
    """Order the GPUs that the rules allow, best first; every other one comes with the reason why not.

    Args:
        devices: The pool, freshly read.
        rules: What the policy says.
        claims_on: By UUID, the live claims of other jobs; they count also before their holders allocate anything.
    """
    candidates = []
    rejected = []
    for device in devices:
        claims = tuple((claims_on or {}).get(device.uuid, ()))
        spare = room_bytes(device, rules.own_pid, claims)
        rejection = _why_not(device, rules, claims, spare)
        if rejection:
            rejected.append(rejection)
        else:
            candidates.append(_candidate(device, rules, claims, spare))
    # Of equals the last: people and desktops sit on GPU 0.
    candidates.sort(key=lambda each: (standing(each), -each.device.index, -(each.device.instance or 0)))
    return Ranking(tuple(candidates), tuple(rejected))


def _candidate(device: Device, rules: SelectionRules, claims: Sequence[Claim], spare: int | None) -> Candidate:
    demand, device_tier, wanted = rules.demand, tier(device, rules.own_pid, claims), rules.demand.on(device)
    is_too_much = demand.or_best_effort and spare is not None and wanted > spare
    is_best_effort = device_tier is not Tier.FREE and (demand.is_whole or is_too_much)
    if is_best_effort and device_tier is Tier.BUSY:
        left = spare
    else:
        left = device.memory_free_bytes if demand.is_whole or spare is None else spare - wanted
    return Candidate(
        device=device,
        tier=device_tier,
        why=explain.occupancy(device, other_processes(device, rules.own_pid), claims),
        claims=tuple(claims),
        claim_bytes=0 if is_best_effort else wanted,
        spare_bytes=spare,
        room_bytes=left,
        is_best_effort=is_best_effort,
    )


def standing(candidate: Candidate) -> tuple[int, int, bool, int, int, int]:
    """By what GPUs rank, best first; those of one standing are equally good."""
    device = candidate.device
    spare, utilization = candidate.room_bytes, device.utilization_percent
    return (
        candidate.tier,
        # Heat passes, and a fault of the memory may end the job.
        2 if memory_faults(device) else int(device.is_too_hot),
        # An unreadable GPU ranks last in its tier: guessing "idle" would put two jobs on one GPU.
        spare is None or utilization is None,
        # Whole GiB: a few MiB that a driver keeps must not outweigh what a GPU is doing.
        -(max(spare or 0, 0) // GIB),
        # A best-effort job is promised nothing, and does not show before it allocates.
        sum(claim.bytes == 0 for claim in candidate.claims) if candidate.is_best_effort else 0,
        100 if utilization is None else utilization,
    )


def _why_not(device: Device, rules: SelectionRules, claims: Sequence[Claim], spare: int | None) -> Rejection | None:
    """The first reason against ``device``, or ``None``."""
    if rules.devices and not matches(device, rules.devices):
        return Rejection(device, "not among select.devices", Cause.EXCLUDED_BY_POLICY)
    if matches(device, rules.exclude):
        return Rejection(device, "excluded by select.exclude", Cause.EXCLUDED_BY_POLICY)
    if rules.refuses_faulty and memory_faults(device):
        return Rejection(device, f"refused by select.faulty: {listed(memory_faults(device))}", Cause.EXCLUDED_BY_POLICY)
    if device.mig_enabled:
        return Rejection(device, instances.WITHOUT_INSTANCE, Cause.UNSUITABLE)
    if device.compute_mode == "prohibited":
        return Rejection(device, "its compute mode is PROHIBITED", Cause.UNSUITABLE)
    is_exclusive = device.compute_mode in ("exclusive_process", "exclusive_thread") and not device.has_mps
    if is_exclusive and (claims or other_processes(device, rules.own_pid)):
        return Rejection(device, "its compute mode is EXCLUSIVE and a process has it", Cause.IN_USE)
    return None if rules.demand.is_whole or rules.demand.or_best_effort else _too_full(device, rules, claims, spare)


def _too_full(device: Device, rules: SelectionRules, claims: Sequence[Claim], spare: int | None) -> Rejection | None:
    wanted, total = rules.demand.on(device), device.memory_total_bytes
    if spare is None or total is None or wanted <= spare:
        return None
    if rules.demand.is_limit and tier(device, rules.own_pid, claims) is Tier.FREE:
        return None  # what a desktop or the driver keeps does not send a job to the CPU that continues with less
    cause = Cause.UNSUITABLE if wanted > total else Cause.IN_USE
    return Rejection(device, explain.too_full(wanted, total, spare), cause)


def matches(device: Device, entries: Iterable[str]) -> bool:
    """Whether one of ``entries`` (index, range, UUID prefix or name pattern) means this GPU; of a MIG instance, also by
    what means its card."""
    return any(_matches(device, entry.strip().lower()) for entry in entries)


def _matches(device: Device, entry: str) -> bool:
    first, dash, last = entry.partition("-")
    if first.isdigit() and (not dash or last.isdigit()):
        return int(first) <= device.index <= int(last or first)
    if entry.startswith("gpu-"):
        return (device.parent or device.uuid).lower().startswith(entry)
    if entry.startswith("mig-"):
        return instances.is_called(device, entry)
    if re.fullmatch("[0-9]+:[0-9]+", entry):
        return device.label == entry
    name = device.name.lower()
    # Of an instance, what it is made of is a name as well: "1g.*".
    names = (name, name.rpartition(" mig ")[2]) if device.parent is not None else (name,)
    try:
        return any(fnmatchcase(each, entry) for each in names)
    except re.error:  # "[z-a]", before Python 3.9
        return False
