"""The GPU number that a JAX program uses, and the GPUs that JAX must see so that this number exists. Pure."""

from __future__ import annotations

from functools import partial
from typing import Iterable, Sequence

from autogpu.frameworks import number
from autogpu.frameworks.number import NAMES, Call, number_of_value, numbers_of_script

# Names of variables that hold the GPU number of a rank. If no variable does, autogpu shows JAX only the rank's GPU,
# which JAX then counts as device 0.
_NAMES_OF_RANKS = (*NAMES, "local_rank")


def number_of_process(calls: Iterable[Call], words: Sequence[object], *, is_rank: bool) -> int:
    """Return the GPU number that a program is about to use; 0 if it has no number or several."""
    number_of = partial(number_of_value, names=_NAMES_OF_RANKS if is_rank else NAMES)
    found = number.number_of_process(
        calls, words, lambda call: set() if call.is_frameworks else numbers_of_script(call, number_of)
    )
    return found or 0


def places_of(number: int, count: int | str, gpu_count: int) -> tuple[int, ...]:
    """Return the CUDA ordinals for ``count`` claimed GPUs: ``number`` for the idlest, then 0 and up for the others."""
    # With count = "all" the process claims every GPU, so no unclaimed GPU has to come before the claimed GPUs.
    claimed = 1 if isinstance(count, str) else min(count, gpu_count)
    if not claimed or not 0 < number < gpu_count:
        return (0,)
    further = [place for place in range(claimed) if place != number]
    return (number, *further)[:claimed]


def shown_ordinals(claimed: Sequence[int], number: int) -> tuple[int, ...]:
    """Return the ordinals that JAX must see: the claimed GPUs, or all up to the last if ``number`` is claimed."""
    return tuple(range(max(claimed) + 1)) if number and number in claimed else tuple(claimed)
