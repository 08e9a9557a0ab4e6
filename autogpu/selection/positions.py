"""Which GPU a script gets for a number that it names, where the order is autogpu's. Pure."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, Sequence


def place(named: Sequence[int], taken: Sequence[int]) -> Mapping[int, int]:
    """By position that a script named, the ordinal of the GPU that it gets.

    A position keeps its own GPU where the process has that, else it gets one of the others. Where the process has fewer
    than were named, several positions are on one.

    Args:
        named: Positions in the pool, each once.
        taken: Ordinals of the process's GPUs, at least one.
    """
    others = [ordinal for ordinal in taken if ordinal not in named]
    found = {}
    for position in named:
        if position in taken:
            found[position] = position
        elif others:
            found[position] = others.pop(0)
    missing = [position for position in named if position not in found]
    found.update({position: taken[place % len(taken)] for place, position in enumerate(missing)})
    return {position: found[position] for position in named}
