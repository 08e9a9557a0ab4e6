"""Which GPU is best for a job, which are best together, and why not the others. Pure."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from itertools import groupby
from types import MappingProxyType
from typing import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from autogpu.devices.enumeration import is_called
from autogpu.devices.model import NVLINK, Device, Inventory
from autogpu.errors import raise_if_from_script
from autogpu.frozen import replace
from autogpu.policy.model import Policy, Resolved
from autogpu.selection import explain
from autogpu.selection.jobs import free_bytes, spare_bytes, tier
from autogpu.selection.memory import memory_demand
from autogpu.selection.model import (
    Candidate,
    Cause,
    Claim,
    MemoryDemand,
    Ranking,
    Rejection,
    SelectionRequest,
    Tier,
    VisibleSpec,
)
from autogpu.text import GIB, listed, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.devices.model import Topology


def ranking_of(
    devices: Iterable[Device],
    policy: Policy,
    spec: VisibleSpec,
    own_pid: int | None = None,
    demand: MemoryDemand | None = None,
    claims_on: Mapping[str, Sequence[Claim]] = MappingProxyType({}),
) -> Ranking:
    """Order the GPUs that the policy allows, best first; every other one comes with the reason why not.

    Args:
        spec: The user's list, which wins over the policy's unless that is locked.
        own_pid: What this process holds already does not make a GPU busy for it.
        demand: What the process claims; ``None`` leaves it to the policy.
        claims_on: By UUID, the live claims of other jobs; they count also before their holders allocate anything.
    """
    candidates, rejected, demand, devices = [], [], demand or memory_demand(policy), tuple(devices)
    barred = {device.uuid: _barred(device, policy, spec) for device in devices}
    has_larger = any(not device.is_small and barred[device.uuid] is None for device in devices)
    for device in devices:
        candidate = _candidate(device, tuple(claims_on.get(device.uuid, ())), demand, own_pid)
        rejection = barred[device.uuid]
        if rejection is None and device.is_small and has_larger:
            rejection = Rejection(device, "a small card, taken only where no larger one may be", Cause.TOO_SMALL)
        rejection = rejection or _taken_alone(candidate, own_pid) or _too_full(candidate, demand)
        if rejection:
            rejected.append(rejection)
        else:
            candidates.append(candidate)

    def order(candidate: Candidate) -> tuple[object, ...]:
        device = candidate.device
        is_preferred = [_matches(device, entry) for entry in policy.prefer]
        # Of equals the last: people and desktops sit on GPU 0.
        return standing(candidate), [*is_preferred, True].index(True), -device.index, -(device.instance or 0)

    return Ranking(tuple(sorted(candidates, key=order)), tuple(rejected))


def _candidate(device: Device, claims: tuple[Claim, ...], demand: MemoryDemand, own_pid: int | None) -> Candidate:
    device_tier, spare, wanted = tier(device, own_pid, claims), spare_bytes(device, own_pid, claims), demand.on(device)
    free, why = free_bytes(device, own_pid, claims), explain.occupancy(device, claims, own_pid)
    seen = Candidate(device, device_tier, why, claims, spare_bytes=spare, free_bytes=free)
    usable = seen.usable_bytes(may_join=demand.may_join)
    is_too_much = demand.or_best_effort and usable is not None and wanted > usable
    is_best_effort = device_tier is not Tier.FREE and (demand.is_whole or is_too_much)
    left = free if is_best_effort or demand.is_whole or usable is None else usable - wanted
    claim_bytes = 0 if is_best_effort else wanted
    return replace(seen, claim_bytes=claim_bytes, left_bytes=left, is_best_effort=is_best_effort)


def standing(candidate: Candidate) -> tuple[int, bool, bool, int, int]:
    """By what GPUs rank, best first; those of one standing are equally good."""
    device = candidate.device
    left, utilization = candidate.left_bytes, device.utilization_percent
    return (
        candidate.tier,
        bool(device.health_problems),
        # An unreadable GPU ranks last in its tier: guessing "idle" would put two jobs on one GPU.
        left is None or utilization is None,
        # Whole GiB: a few MiB that a driver keeps must not outweigh what a GPU is doing.
        -(max(left or 0, 0) // GIB),
        100 if utilization is None else utilization,
    )


def best_connected_first(
    candidates: Sequence[Candidate],
    count: int,
    request: SelectionRequest,
    kept: Collection[str],
    is_free: Callable[[Device], bool],
) -> list[Candidate]:
    """Put the best connected first among candidates of one standing, if only some of these will be taken.

    Args:
        kept: UUIDs of GPUs that come before all others.
    """
    inventory, in_use = request.inventory, request.uuids_in_use
    if not inventory.topology:
        return list(candidates)
    ordered: list[Candidate] = []
    for _, equals in groupby(candidates, lambda c: (c.device.uuid in kept, c.device.uuid in in_use, standing(c))):
        group, missing = list(equals), count - len(ordered)
        if 0 < missing < len(group):
            free = {device.uuid for device in inventory.devices if is_free(device)}
            best = _best_connected(group, missing, ordered, inventory.topology, free)
            group.sort(key=lambda candidate: candidate.device.uuid not in best)
        ordered += group
    return ordered


def _best_connected(
    group: Sequence[Candidate], count: int, taken: Sequence[Candidate], topology: Topology, free: Collection[str]
) -> Sequence[str]:
    """So many of ``group`` that are near to each other and to what the process takes; of the same, the first.

    From each on the nearest are added. Of equally near sets the one that has the fewest NVLinks to GPUs that are free.
    """
    uuids, before = [c.device.uuid for c in group], [c.device.uuid for c in taken]

    def near(uuid: str, others: Iterable[str]) -> list[int]:
        return [topology.get(frozenset((uuid, other)), 0) for other in others]

    def grown(first: str) -> Sequence[str]:
        chosen = [*before, first]
        while len(chosen) < len(before) + count:
            left = [uuid for uuid in uuids if uuid not in chosen]
            chosen.append(max(left, key=lambda uuid: sum(near(uuid, chosen))))
        return chosen

    def worth(chosen: Sequence[str]) -> tuple[int, int]:
        others = {*free, *uuids}.difference(chosen)
        links = sum(near(uuid, others).count(NVLINK) for uuid in chosen)
        return sum(sum(near(uuid, chosen)) for uuid in chosen), -links

    return max(map(grown, uuids), key=worth)


def _barred(device: Device, policy: Policy, spec: VisibleSpec) -> Rejection | None:
    """The policy, or the GPU's mode, keeps every job of this process from it."""
    admitted = {name for name in ("devices", "exclude") if spec.admits(f"select.{name}", policy)}
    only_among = policy.devices if "devices" in admitted else ()
    reasons = (
        (only_among and not matches(device, only_among), explain.NOT_AMONG, Cause.EXCLUDED_BY_POLICY),
        ("exclude" in admitted and matches(device, policy.exclude), explain.EXCLUDED, Cause.EXCLUDED_BY_POLICY),
        (device.mig_enabled, "in MIG mode, and has no instance here", Cause.UNUSABLE),
        (device.compute_mode == "prohibited", "its compute mode is PROHIBITED", Cause.UNUSABLE),
    )
    return next((Rejection(device, why, cause) for is_so, why, cause in reasons if is_so), None)


def _taken_alone(candidate: Candidate, own_pid: int | None) -> Rejection | None:
    device = candidate.device
    is_exclusive = device.compute_mode in ("exclusive_process", "exclusive_thread") and not device.has_mps
    if is_exclusive and (candidate.claims or any(each.pid != own_pid for each in device.compute_processes or ())):
        return Rejection(device, "its compute mode is EXCLUSIVE and a process has it", Cause.IN_USE)
    return None


def _too_full(candidate: Candidate, demand: MemoryDemand) -> Rejection | None:
    device, usable = candidate.device, candidate.usable_bytes(may_join=demand.may_join)
    wanted, total = demand.on(device), device.memory_total_bytes
    if demand.is_whole or usable is None or total is None or wanted <= usable:
        return None
    if demand.or_best_effort and wanted <= total:
        return None
    if demand.is_limit and candidate.tier is Tier.FREE:
        return None  # what a desktop or the driver keeps does not send a job to the CPU that continues with less
    cause = Cause.UNSUITABLE if wanted > total else Cause.IN_USE
    return Rejection(device, explain.too_full(wanted, total, usable), cause)


def matches(device: Device, entries: Iterable[str]) -> bool:
    """One of ``entries`` (index, range, UUID prefix or name pattern) means this GPU, or the card of this instance."""
    return any(_matches(device, entry) for entry in entries)


def _matches(device: Device, entry: str) -> bool:
    entry = entry.strip().lower()
    indices = re.fullmatch("([0-9]+)(?:-([0-9]+))?", entry)
    if indices:
        return int(indices.group(1)) <= device.index <= int(indices.group(2) or indices.group(1))
    if entry.startswith("gpu-"):
        return (device.parent or device.uuid).lower().startswith(entry)
    if entry.startswith("mig-"):
        return is_called(device, entry)
    # "0:1" is an instance's label, and no GPU's name.
    name = device.name.lower()
    try:
        # Of an instance, what it is made of is a name as well: "1g.*".
        return device.label == entry or any(fnmatchcase(each, entry) for each in (name, name.rpartition(" mig ")[2]))
    except re.error as error:  # "[z-a]", before Python 3.9
        raise_if_from_script(error)
        return False


def unmatched_lists(resolved: Resolved, inventory: Inventory, spec: VisibleSpec) -> Iterator[str]:
    """Say, of each list that counts, which entries match none of the GPUs of the machine; nothing where it has none."""
    policy, devices = resolved.policy, inventory.devices
    # An entry may mean a GPU that can't be read, unless it is of a list of which no entry matches.
    is_complete = not (inventory.unreadable or inventory.denied)
    lists = {"select.devices": policy.devices, "select.exclude": policy.exclude, "select.prefer": policy.prefer}
    for key, entries in lists.items():
        unmatched = [entry for entry in entries if not any(_matches(device, entry) for device in devices)]
        is_all = len(unmatched) == len(entries)
        if unmatched and devices and spec.admits(key, policy) and (is_all or is_complete):
            written = ", ".join(printable(entry, 64) for entry in unmatched)
            what = f"{key} = {written} ({resolved.settings[key].origin}) matches none of the GPUs here"
            yield f"{what}; {_what_there_is(unmatched, inventory)}"


def _what_there_is(entries: Sequence[str], inventory: Inventory) -> str:
    devices = inventory.devices
    lost = [each for each in inventory.unreadable if str(each.index) in entries]
    if lost:
        return explain.unreadable(lost)
    for entry in map(str.strip, entries):
        # "9" is no part of "RTX 3090".
        if not entry.replace("-", "").isdecimal() and any(_matches(device, f"*{entry}*") for device in devices):
            return f'for a part of a name, write "*{printable(entry, 64)}*"'
    known = listed([printable(name, 64) for name in dict.fromkeys(device.name for device in devices)])
    return f"there are the indices 0 to {devices[-1].index}: {known}"
