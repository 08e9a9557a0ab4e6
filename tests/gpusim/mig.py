"""How the cards that can be are cut into MIG instances.

============= ==================================================================================================
memory        ``nvidia-smi mig -lgip`` of each card, which rounds to 1/8 GiB. Confirmed in MiB by the ``nvidia-smi`` of
              cards that are cut: A100 as ``9,14,19,19`` in Alibaba Cloud's guide to MIG in Kubernetes, H100 in "MIG
              with CUDA MPS" of NVIDIA's MIG user guide. Some differ a little from driver to driver.
processors    the same lists (H100: hrishi.dev, "NVIDIA, CUDA and GPUs on Kubernetes").
places        "Supported MIG Profiles" in NVIDIA's MIG user guide, which draws them: of eight slices of memory, where
              an instance can begin.
numbers       what ``nvidia-smi mig -cgi`` gave out for ``9,14,19,19`` and for seven of the smallest, as above. Nothing
              is published of the rule; here they go by size, in the order of creation.
============= ==================================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Sequence


@dataclass(frozen=True)
class Profile:
    """One size of instance.

    Attributes:
        slices: Of the card's seven for computing.
        memory_slices: Of the card's eight.
        begins: The slices of memory at which one can begin.
    """

    slices: int
    memory_slices: int
    memory_mib: int
    multiprocessors: int
    begins: tuple[int, ...]


def _profiles(*figures: tuple[str, int, int]) -> Mapping[str, Profile]:
    """By name, from each one's memory in MiB and its processors."""
    named = {}
    memory_of_smallest = int(figures[0][0].split(".")[1].rstrip("gb"))
    for name, memory_mib, multiprocessors in figures:
        slices, memory = int(name[0]), int(name.split(".")[1].rstrip("gb"))
        memory_slices = memory // memory_of_smallest
        begins = PLACES[slices, memory_slices]
        named[name] = Profile(slices, memory_slices, memory_mib, multiprocessors, begins)
    return named


# By slices for computing and of memory.
PLACES = {
    (1, 1): (0, 1, 2, 3, 4, 5, 6),
    (1, 2): (0, 2, 4, 6),
    (2, 2): (0, 2, 4),
    (3, 4): (0, 4),
    (4, 4): (0,),
    (7, 8): (0,),
}

CARDS: Mapping[str, Mapping[str, Profile]] = {
    "NVIDIA A100-SXM4-40GB": _profiles(
        ("1g.5gb", 4864, 14),
        ("1g.10gb", 9984, 14),
        ("2g.10gb", 9984, 28),
        ("3g.20gb", 20096, 42),
        ("4g.20gb", 20096, 56),
        ("7g.40gb", 40320, 98),
    ),
    "NVIDIA H100 80GB HBM3": _profiles(
        ("1g.10gb", 9984, 16),
        ("1g.20gb", 20096, 26),
        ("2g.20gb", 20096, 32),
        ("3g.40gb", 40448, 60),
        ("4g.40gb", 40448, 64),
        ("7g.80gb", 81152, 132),
    ),
}
# By slices of memory: the numbers of instances that begin at each of the places.
_NUMBERS = {8: (0,), 4: (2, 1), 2: (3, 4, 5, 6), 1: (7, 8, 9, 10, 11, 12, 13)}


def fits(profiles: Sequence[Profile]) -> bool:
    """Whether a card has a place for each, none over another."""
    return _places_left(sorted(profiles, key=lambda profile: -profile.memory_slices), frozenset())


def _places_left(profiles: Sequence[Profile], taken: frozenset[int]) -> bool:
    if not profiles:
        return True
    first, rest = profiles[0], profiles[1:]
    for begin in first.begins:
        place = frozenset(range(begin, begin + first.memory_slices))
        if not place & taken and _places_left(rest, taken | place):
            return True
    return False


def numbers(profiles: Sequence[Profile]) -> list[int]:
    """The id of each one's GPU instance; those of small ones begin at 9 where there is a larger one."""
    sizes = {profile.memory_slices for profile in profiles}
    left = {size: list(ids) for size, ids in _NUMBERS.items()}
    if len(sizes) > 1:
        left[1] = left[1][2:] + left[1][:2]
    return [left[profile.memory_slices].pop(0) for profile in profiles]
