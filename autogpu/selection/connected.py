"""Which of equally idle GPUs are connected best. Pure.

A job of several GPUs takes those that are connected best; a job of one takes a GPU whose NVLinks lead to taken ones.
"""

from __future__ import annotations

from itertools import combinations, groupby

from autogpu.frozen import replace
from autogpu.selection.model import Candidate, Ranking, SelectionRequest, connection_score
from autogpu.selection.ranking import standing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Collection, Iterable, Sequence

    from autogpu.devices.model import Device, Topology

# Of so many every set is looked at; of more, from each on the one is added that is connected best to those before.
_MOST_IN_SETS = 8

# Above the number of NVLinks that lead from any set: none outweighs a step between two scores.
_LINKS_PER_STEP = 1000


def best_connected_first(
    candidates: Sequence[Candidate], count: int, request: SelectionRequest, is_free: Callable[[Device], bool]
) -> list[Candidate]:
    """Put the best connected first among candidates of one standing, where only some of these will be taken."""
    inventory = request.inventory
    if inventory is None or request.positions or not inventory.topology:
        return list(candidates)
    uuids = request.uuids or ()
    in_use = {uuids[ordinal] for ordinal in request.in_use}
    ordered: list[Candidate] = []
    for _, equals in groupby(candidates, lambda c: (c.device.uuid in in_use, standing(c))):
        group, missing = list(equals), count - len(ordered)
        if 0 < missing < len(group):
            free = {device.uuid for device in inventory.devices if is_free(device)}
            best = _best_connected(group, missing, ordered, inventory.topology, free)
            group.sort(key=lambda candidate: candidate.device.uuid not in best)
        ordered += group
    return ordered


def taken_first(ranking: Ranking, taken: Collection[str]) -> Ranking:
    """The ranking with those that were taken before others of their standing."""
    ordered = sorted(ranking.candidates, key=lambda c: (standing(c), c.device.uuid not in taken))
    return replace(ranking, candidates=tuple(ordered))


def _best_connected(
    group: Sequence[Candidate], count: int, taken: Sequence[Candidate], topology: Topology, free: Collection[str]
) -> Sequence[str]:
    """So many of ``group`` that the scores within what the process takes are highest; of the same, by rank.

    Of sets with one score the one that has the fewest NVLinks to GPUs left free.
    """
    uuids, before = [c.device.uuid for c in group], [c.device.uuid for c in taken]
    others = {*free, *uuids}.difference(before)

    def score(one: str, other: str) -> int:
        return _LINKS_PER_STEP * connection_score(topology.get(frozenset((one, other))))

    def nvlinks(one: str, other: str) -> int:
        what = topology.get(frozenset((one, other)))
        return what if isinstance(what, int) else 0

    # A link between two that are taken is none to a GPU left free, and each of the two has counted it.
    pairs = {(a, b): score(a, b) + 2 * nvlinks(a, b) for a in uuids for b in uuids if a != b}
    alone = {a: sum(score(a, b) for b in before) - sum(nvlinks(a, b) for b in others - {a}) for a in uuids}

    def gain(uuid: str, chosen: Sequence[str]) -> int:
        return alone[uuid] + sum(pairs[uuid, other] for other in chosen)

    def worth(chosen: Sequence[str]) -> int:
        return sum(gain(uuid, chosen[:number]) for number, uuid in enumerate(chosen))

    def grown(first: str) -> Sequence[str]:
        chosen = [first]
        while len(chosen) < count:
            chosen.append(max((u for u in uuids if u not in chosen), key=lambda uuid: gain(uuid, chosen)))
        return chosen

    sets: Iterable[Sequence[str]] = combinations(uuids, count) if len(uuids) <= _MOST_IN_SETS else map(grown, uuids)
    return max(sets, key=worth)
