"""Find GPU numbers in PyTorch's own calls, in devices, and in texts such as ``"cuda:2"``. Pure."""

from __future__ import annotations

import re
from typing import Any, Callable, Iterable, Sequence

from autogpu.frameworks import number
from autogpu.frameworks.number import Call, attributes_of, numbers_in, numbers_of_script

# Functions that ask about a GPU, but do not use it.
_ASKING = ("get_device_name", "get_device_properties", "get_device_capability")

_CUDA = re.compile("cuda(?::([0-9]{1,4}))?")


def number_of_process(
    calls: Iterable[Call], words: Sequence[object], index_of: Callable[[object], int | None]
) -> int | None:
    """Return the GPU number that a PyTorch program is about to use; ``None`` if none is found, or several.

    Args:
        calls: See :func:`autogpu.frameworks.number.number_of_process`.
        words: The arguments of the program.
        index_of: Returns the index of a ``torch.device``, and ``None`` for any other object.
    """
    return number.number_of_process(calls, words, lambda call: _numbers(call, index_of))


def gpus_named(calls: Iterable[Call], index_of: Callable[[object], int | None]) -> tuple[int, ...]:
    """Return the GPUs in ``device_ids`` of the innermost PyTorch call with such an argument, such as DataParallel."""
    for call in calls:
        named: Any = call.variables.get("device_ids") if call.is_frameworks else None
        if type(named) in (list, tuple):
            return _distinct(named, index_of)
    return ()


def _distinct(named: Iterable[object], index_of: Callable[[object], int | None]) -> tuple[int, ...]:
    """Return the index of each named GPU once; ``()`` if an entry is not a GPU."""
    indices: dict[int, None] = {}
    for each in named:
        index = each if type(each) is int else _index(each, index_of)
        if index is None or index < 0:
            return ()
        indices[index] = None
    return tuple(indices)


def _numbers(call: Call, index_of: Callable[[object], int | None]) -> set[int]:
    def number_of(name: object, value: object) -> int | None:
        return _index(value, index_of)

    if not call.is_frameworks:
        return numbers_of_script(call, number_of)
    if call.function in _ASKING:
        return set()
    variables = [(name, value) for name, value in call.variables.items() if not name.startswith("__")]
    idx = attributes_of(call.variables.get("self")).get("idx")
    found = numbers_in(variables, number_of) | _plain_numbers(call, idx)
    return found - {0} or found


def _plain_numbers(call: Call, idx: object) -> set[int]:
    """Return plain GPU numbers in a call of PyTorch.

    A context manager that makes a GPU the current device keeps the GPU's number as ``idx``.
    """
    device = call.variables.get("device", "")
    is_default = device is None and call.function == "cuda"
    return {each for each in (idx, 0 if is_default else device) if type(each) is int and each >= 0}


def _index(value: object, index_of: Callable[[object], int | None]) -> int | None:
    # Compare the exact type, because isinstance may run the script's code.
    if type(value) is not str:
        return index_of(value)
    found = _CUDA.fullmatch(value)
    return int(found.group(1) or 0) if found else None
