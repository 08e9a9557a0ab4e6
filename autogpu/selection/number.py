"""The number under which a program is about to use its GPU, as the program counts. Pure.

A rank has its number from its launcher (:mod:`autogpu.selection.ranks`). Else it is the one that the code which starts
CUDA holds in a variable or names itself; else the one that the command line gives to an option that names a GPU.
"""

from __future__ import annotations

import re

from autogpu.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Iterable, Iterator, Mapping, Sequence

# Options whose plain number is a GPU's. Others that only contain such a word are not:
# --per_device_train_batch_size 2.
_NAMES = ("gpu", "gpu_id", "gpuid", "gpu_idx", "gpu_index", "device", "device_id", "cuda_device", "cuda_id")

# To ask about a GPU is not to use it.
_ASKING = ("get_device_name", "get_device_properties", "get_device_capability")

_CUDA = re.compile("cuda(?::([0-9]{1,4}))?")


@frozen
class Call:
    """One of the calls that lead to CUDA's start.

    Attributes:
        function: Its name.
        variables: By name, as they are at that moment.
        constants: What stands in its code.
        is_frameworks: It is the framework's own code, whose ``device`` may be a plain number.
    """

    function: str
    variables: Mapping[str, object]
    constants: Sequence[object] = ()
    is_frameworks: bool = False


def number_of_process(
    calls: Iterable[Call], words: Sequence[object], index_of: Callable[[object], int | None]
) -> int | None:
    """The number of the GPU that a program is about to use; ``None`` where it tells none, or several.

    Args:
        calls: Innermost first. The first that tells a number counts, and of several in one call the one that is not 0.
        words: The arguments of the program; text, but scripts may put anything there.
        index_of: The index of a framework's own kind of device; ``None`` for all else.
    """
    for call in calls:
        if call.is_frameworks and call.function in _ASKING:
            continue
        found = set(_numbers(call, index_of))
        found = found - {0} or found
        if not found and not call.is_frameworks:
            found = {number for number in (_index(each, index_of) for each in call.constants) if number is not None}
        if found:
            return found.pop() if len(found) == 1 else number_of_words(words)
    return number_of_words(words)


def _numbers(call: Call, index_of: Callable[[object], int | None]) -> Iterator[int]:
    for name, value in call.variables.items():
        if name.startswith("__"):
            continue
        values, own = [value], getattr(value, "__dict__", {}) if name == "self" else {}
        if not call.is_frameworks:
            values += list(own.values())
        elif name in ("self", "device"):
            # A block that makes a GPU the current one keeps its number as `idx`.
            number = own.get("idx") if name == "self" else value
            if type(number) is int and number >= 0:
                yield number
            elif value is None and call.function == "cuda":
                yield 0
        for each in values:
            number = _index(each, index_of)
            if number is not None:
                yield number


def _index(value: object, index_of: Callable[[object], int | None]) -> int | None:
    # By its exact type: to ask an object of the script's for its class may run code of the script's.
    if type(value) is not str:
        return index_of(value)
    found = _CUDA.fullmatch(value)
    return int(found.group(1) or 0) if found else None


def number_of_words(words: Sequence[object]) -> int | None:
    """The one GPU that a command line names: ``cuda:2`` anywhere, a plain number where an option names a GPU."""
    texts, found = [str(word) for word in words], set()
    for before, word in zip(["", *texts], texts):
        # --name value, --name=value, group.name=value
        name, equals, value = word.partition("=")
        if not equals:
            name, value = before if before.startswith("-") else "", word
        is_gpu = name.lstrip("-").rpartition(".")[2].replace("-", "_").lower() in _NAMES
        number = re.fullmatch("(cuda:)?([0-9]{1,4})", value)
        if number and (is_gpu or number.group(1)):
            found.add(int(number.group(2)))
    return found.pop() if len(found) == 1 else None
