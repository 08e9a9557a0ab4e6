"""The ranking of GPUs for a job: the best, the best connected, and the reasons against the others. Pure functions."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from itertools import groupby
from types import MappingProxyType
from typing import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from autogpu.devices.enumeration import is_called
from autogpu.devices.model import NVLINK, ComputeMode, Device, Inventory
from autogpu.errors import raise_if_from_script
from autogpu.frozen import Value, replace
from autogpu.policy.model import Policy
from autogpu.selection.jobs import free_bytes, spare_bytes, tier
from autogpu.selection.model import (
    Candidate,
    Claim,
    MemoryDemand,
    Obstacle,
    Ranking,
    Rejection,
    SelectionRequest,
    Tier,
    VisibleSpec,
    memory_demand,
)
from autogpu.text import GIB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.devices.model import Topology

_EXCLUSIVE = (ComputeMode.EXCLUSIVE_PROCESS, ComputeMode.EXCLUSIVE_THREAD)


def ranking_of(
    devices: Iterable[Device],
    policy: Policy,
    spec: VisibleSpec,
    own_pid: int | None = None,
    demand: MemoryDemand | None = None,
    claims_on: Mapping[str, Sequence[Claim]] = MappingProxyType({}),
) -> Ranking:
    """Rank the GPUs that the policy allows, best first; reject every other one with its obstacle.

    Args:
        spec: The user's list, which takes precedence over a list of the policy unless that one is locked.
        own_pid: Pid of this process, whose own memory does not make a GPU busy.
        demand: ``None`` for the demand that the policy sets.
        claims_on: The live claims of other jobs, keyed by GPU UUID. A claim counts even before its holder has
            allocated memory.
    """
    candidates = []
    rejected = []
    demand = demand or memory_demand(policy)
    devices = tuple(devices)
    obstacles = {device.uuid: obstacle_for_all(device, policy, spec) for device in devices}
    has_larger = any(not device.is_small and obstacles[device.uuid] is None for device in devices)
    for device in devices:
        candidate = _candidate(device, tuple(claims_on.get(device.uuid, ())), demand, own_pid)
        obstacle = obstacles[device.uuid]
        if obstacle is None and device.is_small and has_larger:
            obstacle = Obstacle.SMALL_CARD
        rejection = _rejection(candidate, obstacle, demand, own_pid)
        if rejection:
            rejected.append(rejection)
        else:
            candidates.append(candidate)

    def order(candidate: Candidate) -> tuple[object, ...]:
        device = candidate.device
        is_preferred = [_matches(device, entry) for entry in policy.prefer]
        # Of equal GPUs take the last: desktops use GPU 0, and so do people who don't choose.
        return standing(candidate), [*is_preferred, True].index(True), -device.index, -(device.instance or 0)

    return Ranking(tuple(sorted(candidates, key=order)), tuple(rejected))


def _candidate(device: Device, claims: tuple[Claim, ...], demand: MemoryDemand, own_pid: int | None) -> Candidate:
    wanted = demand.on(device)
    spare = spare_bytes(device, own_pid, claims)
    # Don't compute this twice: a GPU may have many processes, and other processes wait for the mutex.
    free = free_bytes(device, own_pid, claims) if claims else spare
    seen = Candidate(device, tier(device, own_pid, claims), claims, spare_bytes=spare, free_bytes=free)
    usable = seen.usable_bytes(may_join=demand.may_join)
    is_too_much = demand.or_best_effort and usable is not None and wanted > usable
    is_best_effort = seen.tier is not Tier.FREE and (demand.is_whole or is_too_much)
    left = seen.free_bytes
    if not (is_best_effort or demand.is_whole or usable is None):
        left = usable - wanted
    claim_bytes = 0 if is_best_effort else wanted
    return replace(seen, claim_bytes=claim_bytes, left_bytes=left, is_best_effort=is_best_effort)


def standing(candidate: Candidate) -> tuple[int, bool, bool, int, int, int]:
    """Return the sort key of a GPU, lowest for the best. GPUs with the same key are equally good."""
    device = candidate.device
    left = candidate.left_bytes
    utilization = device.utilization_percent
    return (
        candidate.tier,
        not device.is_healthy,
        # An unreadable GPU ranks last in its tier: guessing "idle" would put two jobs on one GPU.
        left is None or utilization is None,
        # Count whole GiB, so that a few MiB of the driver don't outweigh the GPU's utilization.
        -(max(left or 0, 0) // GIB),
        100 if utilization is None else utilization,
        # Jobs that an engine starts together all get the same readings, so the number of claims decides.
        len(candidate.claims),
    )


def best_connected_first(
    candidates: Sequence[Candidate],
    count: int,
    request: SelectionRequest,
    kept: Collection[str],
    is_free: Callable[[Device], bool],
) -> list[Candidate]:
    """Put the best connected GPUs first among those of equal standing, if only some of these will be taken.

    Args:
        kept: UUIDs of GPUs that come before all others.
    """
    inventory = request.inventory
    in_use = request.uuids_in_use
    if not inventory.topology:
        return list(candidates)
    ordered: list[Candidate] = []
    for _, equals in groupby(candidates, lambda c: (c.device.uuid in kept, c.device.uuid in in_use, standing(c))):
        group = list(equals)
        missing = count - len(ordered)
        if 0 < missing < len(group):
            free = {device.uuid for device in inventory.devices if is_free(device)}
            best = _best_connected(group, missing, ordered, inventory.topology, free)
            group.sort(key=lambda candidate: candidate.device.uuid not in best)
        ordered += group
    return ordered


def _best_connected(
    group: Sequence[Candidate], count: int, taken: Sequence[Candidate], topology: Topology, free: Collection[str]
) -> Sequence[str]:
    """Return the UUIDs of ``taken``, and of the ``count`` GPUs in ``group`` nearest to these and to each other.

    Build one set from each GPU of the group by adding the nearest GPU until there are enough. Of equally near sets,
    return the one with the fewest NVLinks to free GPUs outside of it, else the first.
    """
    uuids = [c.device.uuid for c in group]
    before = [c.device.uuid for c in taken]

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


def excluded_by(device: Device, policy: Policy, spec: VisibleSpec) -> Obstacle | None:
    if policy.devices and spec.admits("select.devices", policy) and not matches(device, policy.devices):
        return Obstacle.NOT_AMONG_DEVICES
    if spec.admits("select.exclude", policy) and matches(device, policy.exclude):
        return Obstacle.EXCLUDED
    return None


def obstacle_for_all(device: Device, policy: Policy, spec: VisibleSpec) -> Obstacle | None:
    """Return the obstacle for every job of this process, by the policy or the GPU's mode; ``None`` if there is none."""
    excluded = excluded_by(device, policy, spec)
    if excluded:
        return excluded
    if device.mig_enabled:
        return Obstacle.MIG_WITHOUT_INSTANCE
    if device.compute_mode is ComputeMode.PROHIBITED:
        return Obstacle.PROHIBITED
    return None


def _rejection(
    candidate: Candidate, obstacle: Obstacle | None, demand: MemoryDemand, own_pid: int | None
) -> Rejection | None:
    """Return the rejection by ``obstacle``, or by the present use of the GPU; ``None`` if the job may take it."""
    if obstacle is not None:
        return Rejection(candidate.device, obstacle)
    if _is_exclusive(candidate, own_pid):
        return Rejection(candidate.device, Obstacle.EXCLUSIVE)
    return _too_full(candidate, demand)


def _is_exclusive(candidate: Candidate, own_pid: int | None) -> bool:
    device = candidate.device
    if device.compute_mode not in _EXCLUSIVE or device.has_mps:
        return False
    return bool(candidate.claims) or any(each.pid != own_pid for each in device.compute_processes or ())


def _too_full(candidate: Candidate, demand: MemoryDemand) -> Rejection | None:
    device = candidate.device
    usable = candidate.usable_bytes(may_join=demand.may_join)
    wanted = demand.on(device)
    total = device.memory_total_bytes
    if demand.is_whole or usable is None or total is None or wanted <= usable:
        return None
    if demand.or_best_effort and wanted <= total:
        return None
    if demand.is_limit and candidate.tier is Tier.FREE:
        return None  # the job can use less, so don't reject a GPU for a desktop's memory
    if wanted > total:
        return Rejection(device, Obstacle.NEED_ABOVE_TOTAL, wanted, total)
    return Rejection(device, Obstacle.NEED_ABOVE_FREE, wanted, usable)


def matches(device: Device, entries: Iterable[str]) -> bool:
    """True if an index, range, UUID prefix or name pattern means this GPU, or the card of this MIG instance."""
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
    # "0:1" is the label of an instance. No GPU has such a name.
    name = device.name.lower()
    try:
        # The profile of a MIG instance counts as a name, too: "1g.*".
        return device.label == entry or any(fnmatchcase(each, entry) for each in (name, name.rpartition(" mig ")[2]))
    except re.error as error:  # Python before 3.9 fails on "[z-a]"
        raise_if_from_script(error)
        return False


def _matches_any(entry: str, devices: Iterable[Device]) -> bool:
    return any(_matches(device, entry) for device in devices)


class UnmatchedList(Value):
    """Entries of a list of the policy that match no GPU; ``key`` is the list's name, such as ``select.exclude``."""

    key: str
    entries: tuple[str, ...]


def unmatched_lists(policy: Policy, inventory: Inventory, spec: VisibleSpec) -> Iterator[UnmatchedList]:
    """Yield each list of the policy that applies and has entries without a match; nothing if there is no GPU."""
    devices = inventory.devices
    # If some GPUs can't be read, an entry may match one of them. Then report only lists without any match.
    is_complete = not (inventory.unreadable or inventory.denied)
    lists = {"select.devices": policy.devices, "select.exclude": policy.exclude, "select.prefer": policy.prefer}
    for key, entries in lists.items():
        unmatched = [entry for entry in entries if not _matches_any(entry, devices)]
        is_all = len(unmatched) == len(entries)
        if unmatched and devices and spec.admits(key, policy) and (is_all or is_complete):
            yield UnmatchedList(key, tuple(unmatched))
