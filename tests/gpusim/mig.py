"""MIG profiles of the cards that the simulation can cut into instances, and their sources.

============= ==================================================================================================
memory        ``nvidia-smi mig -lgip`` of each card, which rounds to 1/8 GiB. Confirmed in MiB by ``nvidia-smi`` on
              cards that are cut: an A100 with instances of the profile ids 9, 14, 19 and 19 in Alibaba Cloud's guide to
              MIG in Kubernetes, an H100 in "MIG with CUDA MPS" of NVIDIA's MIG user guide. Some values differ slightly
              between drivers.
processors    The same lists (H100: hrishi.dev, "NVIDIA, CUDA and GPUs on Kubernetes").
places        The drawings in "Supported MIG Profiles" of NVIDIA's MIG user guide: at which of the eight memory slices
              an instance can begin.
numbers       GPU instance ids that ``nvidia-smi mig -cgi`` assigned, in the sources above: to instances of the profile
              ids 9, 14, 19 and 19, and to seven of the smallest profile. NVIDIA's rule is not published. Here an id
              depends on the instance's size and on the order of creation.
============= ==================================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Sequence


@dataclass(frozen=True)
class Profile:
    """A size of MIG instances.

    Attributes:
        slices: Number of compute slices, out of the card's seven.
        memory_slices: Number of memory slices, out of the card's eight.
        begins: Memory slices at which an instance of this size can begin.
    """

    slices: int
    memory_slices: int
    memory_mib: int
    multiprocessors: int
    begins: tuple[int, ...]


def _profiles(*figures: tuple[str, int, int]) -> Mapping[str, Profile]:
    """Return profiles keyed by name. Figures: name, memory in MiB, multiprocessors; the smallest profile first."""
    named = {}
    memory_of_smallest = int(figures[0][0].split(".")[1].rstrip("gb"))
    for name, memory_mib, multiprocessors in figures:
        slices, memory = int(name[0]), int(name.split(".")[1].rstrip("gb"))
        memory_slices = memory // memory_of_smallest
        begins = PLACES[slices, memory_slices]
        named[name] = Profile(slices, memory_slices, memory_mib, multiprocessors, begins)
    return named


# Memory slices at which an instance can begin, keyed by its compute slices and memory slices.
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
# GPU instance ids in the order of creation, keyed by memory slices.
_NUMBERS = {8: (0,), 4: (2, 1), 2: (3, 4, 5, 6), 1: (7, 8, 9, 10, 11, 12, 13)}


def fits(profiles: Sequence[Profile]) -> bool:
    """True if instances of all these profiles fit on one card without overlap."""
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
    """Return the GPU instance id of each profile. The ids of one-slice instances begin at 9 if sizes are mixed."""
    sizes = {profile.memory_slices for profile in profiles}
    left = {size: list(ids) for size, ids in _NUMBERS.items()}
    if len(sizes) > 1:
        left[1] = left[1][2:] + left[1][:2]
    return [left[profile.memory_slices].pop(0) for profile in profiles]
