"""Which of equally idle GPUs are connected best, and what has to be known for that. Pure.

A job of several GPUs takes those that are connected best; a job of one takes a GPU whose NVLinks lead to taken ones.
"""

from __future__ import annotations

import sys
from itertools import combinations, groupby
from operator import add

from autogpu.devices.model import TopologyQuestion
from autogpu.frozen import replace
from autogpu.selection.instances import cards
from autogpu.selection.memory import demand_of
from autogpu.selection.model import Cause, connection_score
from autogpu.selection.ranking import rank, rules_for, standing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Collection, Sequence

    from autogpu.devices.model import AsksTopology, Device, Inventory, Topology
    from autogpu.policy import Policy
    from autogpu.selection.grants import Grant
    from autogpu.selection.model import Candidate, MemoryDemand, Ranking, SelectionRequest, VisibleSpec

# Every set is looked at of 16 GPUs, the most that are sold in one server; above that, one is added after the other.
_MOST_SETS = 12870

# Above the number of NVLinks that lead from one GPU: none outweighs a step between two scores.
_LINKS_PER_STEP = 1000


def topology_question(
    inventory: Inventory,
    policy: Policy,
    spec: VisibleSpec,
    grant: Grant,
    uuids: Sequence[str] | None,
    own_pid: int | None,
    demand: MemoryDemand | None = None,
    *,
    is_explained: bool = False,
) -> TopologyQuestion | None:
    """What a decision on these readings has to know of the connections between the GPUs; ``None`` for nothing.

    Claims are not known yet; they set equal GPUs apart, and make none equal that could both be free.

    Args:
        uuids: The process's GPUs; ``None`` for all of the machine.
        demand: What the process claims; ``None`` leaves it to the policy.
        is_explained: Whether it is asked as well what connects several GPUs among which there is no choice.
    """
    ranks = grant.rank
    if ranks is not None and grant.engine:
        return None  # they take slices of what was granted
    wanted = sys.maxsize if policy.count == "all" else policy.count * (ranks.size if ranks is not None else 1)
    # Nothing connects MIG instances but what connects their cards.
    devices = [device for device in cards(inventory.devices) if uuids is None or device.uuid in uuids]
    ranking = rank(devices, rules_for(policy, spec, own_pid, demand))
    usable = [candidate.device.uuid for candidate in ranking.candidates]
    tied = _tied(ranking)
    if policy.busy == "wait":
        # Those that come free while it waits are equals then, and nothing is read again at that moment.
        usable += [rejection.device.uuid for rejection in ranking.rejected if rejection.cause is Cause.IN_USE]
        tied = usable
    if wanted > 1 and len(usable) > 1 and (is_explained or policy.level == "explain"):
        return TopologyQuestion(frozenset(usable), with_paths=True)
    if wanted == 0 or len(tied) < 2 or len(usable) <= wanted:
        return None
    return TopologyQuestion(frozenset(usable if wanted > 1 else tied), with_paths=wanted > 1)


def topology_question_of(request: SelectionRequest, *, is_explained: bool = False) -> AsksTopology:
    """The same for a request, of readings that are still to come."""

    def asks(inventory: Inventory) -> TopologyQuestion | None:
        known = (request.policy, request.visible_spec, request.grant, request.uuids, request.own_pid)
        return topology_question(inventory, *known, demand_of(request), is_explained=is_explained)

    return asks


def _tied(ranking: Ranking) -> list[str]:
    groups = [list(group) for _, group in groupby(ranking.candidates, standing)]
    return [candidate.device.uuid for group in groups if len(group) > 1 for candidate in group]


def best_connected_first(
    candidates: Sequence[Candidate], count: int, request: SelectionRequest, is_free: Callable[[Device], bool]
) -> list[Candidate]:
    """The candidates in their order but for those of one standing, of which the best connected come first.

    Args:
        candidates: In the order to take them.
        count: How many will be taken.
        is_free: Tells of a GPU of the machine whether another job could take it.
    """
    inventory = request.inventory
    if inventory is None or request.positions or not (inventory.topology.nvlinks or inventory.topology.ancestors):
        return list(candidates)  # what NVSwitch alone connects is connected alike
    uuids = request.uuids or ()
    in_use = {uuids[ordinal] for ordinal in request.in_use}
    ordered: list[Candidate] = []
    for _, equals in groupby(candidates, lambda c: (c.device.uuid in in_use, standing(c))):
        group, missing = list(equals), count - len(ordered)
        if 0 < missing < len(group):
            free = {device.uuid for device in inventory.devices if is_free(device)}
            first = _best_connected(group, missing, ordered, inventory.topology, free)
            group = [*first, *(candidate for candidate in group if candidate not in first)]
        ordered += group
    return ordered


def with_first(ranking: Ranking, taken: Sequence[Candidate]) -> Ranking:
    """The ranking with those that were taken before others of their standing."""
    mine = {candidate.device.uuid for candidate in taken}
    ordered = sorted(ranking.candidates, key=lambda c: (standing(c), c.device.uuid not in mine))
    return replace(ranking, candidates=tuple(ordered))


def _best_connected(
    group: Sequence[Candidate], count: int, taken: Sequence[Candidate], topology: Topology, free: Collection[str]
) -> list[Candidate]:
    """So many of ``group`` that the scores within what the process takes are highest.

    Of sets with one score the one that has the fewest NVLinks to GPUs left free; of these the one that ranks first.
    """
    uuids, before = [c.device.uuid for c in group], [c.device.uuid for c in taken]
    others = {*free, *uuids, *before}

    def nvlinks(one: str, other: str) -> int:
        return topology.nvlinks.get(frozenset((one, other)), 0)

    def gain(one: str, other: str) -> int:
        return _LINKS_PER_STEP * connection_score(topology, frozenset((one, other)))

    # Links among those that are taken count here as well: of sets with one score they are as many.
    alone = [
        sum(gain(uuid, other) for other in before) - sum(nvlinks(uuid, other) for other in others if other != uuid)
        for uuid in uuids
    ]
    pairs = [[0 if one == other else gain(one, other) for other in uuids] for one in uuids]
    places = (_best_set if _sets(len(uuids), count) <= _MOST_SETS else _grown_set)(alone, pairs, count)
    return [group[place] for place in sorted(places)]


def _sets(size: int, count: int) -> int:
    sets = 1
    for place in range(count):
        sets = sets * (size - place) // (place + 1)
    return sets


def _best_set(alone: Sequence[int], pairs: Sequence[Sequence[int]], count: int) -> Sequence[int]:
    """The places of the set with the most of ``alone`` and ``pairs`` together; of several the first."""
    size, twins = len(alone), _twins(alone, pairs)
    hopes: dict[tuple[int, int], list[int]] = {}
    best: tuple[int, Sequence[int]] = (_worth(_grown_set(alone, pairs, count), alone, pairs) - 1, ())

    def hope(start: int, missing: int) -> list[int]:
        """What each would have at most with the others of ``missing`` that are all from ``start`` on."""
        if (start, missing) not in hopes:
            rows = [sorted(row[start:], reverse=True) for row in pairs[start:]]
            hopes[start, missing] = [sum(row[: missing - 1]) for row in rows]
        return hopes[start, missing]

    def look(start: int, chosen: tuple[int, ...], total: int, gains: Sequence[int]) -> None:
        nonlocal best
        missing = count - len(chosen)
        for place in range(start, size - missing + 1):
            # Two that are connected alike are exchangeable: the later one is not tried without the earlier one.
            if twins[place] is not None and twins[place] not in chosen:
                continue
            so_far = total + gains[place]
            if missing > 2:
                with_it = list(map(add, gains, pairs[place]))
                # Twice, since each pair is in the hope of both.
                rest = [2 * has + more for has, more in zip(with_it[place + 1 :], hope(place + 1, missing - 1))]
                most = sorted(rest, reverse=True)
                if 2 * so_far + sum(most[: missing - 1]) > 2 * best[0]:
                    look(place + 1, (*chosen, place), so_far, with_it)
                continue
            # The last one is the best of the rest.
            rest = list(map(add, gains[place + 1 :], pairs[place][place + 1 :])) if missing == 2 else [0]
            last = max(rest)
            if so_far + last > best[0]:
                places = (place + 1 + rest.index(last),) if missing == 2 else ()
                best = (so_far + last, (*chosen, place, *places))

    look(0, (), 0, list(alone))
    return best[1]


def _worth(places: Sequence[int], alone: Sequence[int], pairs: Sequence[Sequence[int]]) -> int:
    """What a set has of ``alone`` and ``pairs`` together."""
    return sum(alone[place] for place in places) + sum(pairs[one][other] for one, other in combinations(places, 2))


def _twins(alone: Sequence[int], pairs: Sequence[Sequence[int]]) -> list[int | None]:
    """For each, the one before it that is connected to all others as it is."""
    twins: list[int | None] = []
    for place, row in enumerate(pairs):
        alike = [
            earlier
            for earlier in range(place)
            if alone[earlier] == alone[place]
            and all(pairs[earlier][x] == row[x] for x in range(len(row)) if x not in (earlier, place))
        ]
        twins.append(alike[-1] if alike else None)
    return twins


def _grown_set(alone: Sequence[int], pairs: Sequence[Sequence[int]], count: int) -> Sequence[int]:
    """A good set: from each GPU on, the one is added that is connected best to those before."""
    best: tuple[int, Sequence[int]] = (-sys.maxsize, ())
    for start in range(len(alone)):
        chosen, total, gains = [start], alone[start], list(map(add, alone, pairs[start]))
        while len(chosen) < count:
            place = max((p for p in range(len(alone)) if p not in chosen), key=gains.__getitem__)
            total += gains[place]
            chosen.append(place)
            gains = list(map(add, gains, pairs[place]))
        if total > best[0]:
            best = (total, chosen)
    return best[1]
