"""The number under which a JAX program uses its GPU, and the devices that JAX shows for it. Pure."""

from __future__ import annotations

from functools import partial
from typing import Iterable, Sequence

from autogpu.frameworks import number
from autogpu.frameworks.number import NAMES, Call, number_of_value, numbers_of_script

# A rank sees its own GPU alone, as device 0, unless the code that starts JAX holds the rank's number by such a name.
_NAMES_OF_RANKS = (*NAMES, "local_rank")


def number_of_process(calls: Iterable[Call], words: Sequence[object], *, is_rank: bool) -> int:
    """The number of the GPU that a program is about to use; 0 if it tells none, or several."""
    number_of = partial(number_of_value, names=_NAMES_OF_RANKS if is_rank else NAMES)
    found = number.number_of_process(
        calls, words, lambda call: set() if call.is_frameworks else numbers_of_script(call, number_of)
    )
    return found or 0


def places_of(number: int, count: int | str, gpu_count: int) -> tuple[int, ...]:
    """Where CUDA is to count ``count`` claimed GPUs: the idlest as the script's ``number``, further ones from 0 on."""
    # All GPUs are claimed for "all", and there are none before them.
    claimed = 1 if isinstance(count, str) else min(count, gpu_count)
    if not claimed or not 0 < number < gpu_count:
        return (0,)
    further = [place for place in range(claimed) if place != number]
    return (number, *further)[:claimed]


def shown_ordinals(claimed: Sequence[int], number: int) -> tuple[int, ...]:
    """The GPUs that JAX is to see: the claimed ones, with those before them if one has the script's ``number``."""
    return tuple(range(max(claimed) + 1)) if number and number in claimed else tuple(claimed)
