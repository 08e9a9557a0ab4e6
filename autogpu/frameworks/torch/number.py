"""The number under which a program is about to use its GPU, as the program counts. Pure.

A rank has its number from its launcher (:mod:`autogpu.selection.ranks`). Else it is the one that the code which starts
CUDA holds in a variable or names itself; else the one that the command line gives to an option that names a GPU.
"""

from __future__ import annotations

import re
from types import GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any, Callable, Iterable, Mapping, Sequence

from autogpu.errors import raise_if_from_script
from autogpu.frozen import Value

# Options whose plain number is a GPU's. Others that only contain such a word are not:
# --per_device_train_batch_size 2.
_NAMES = ("gpu", "gpu_id", "gpuid", "gpu_idx", "gpu_index", "device", "device_id", "cuda_device", "cuda_id")

# To ask about a GPU is not to use it.
_ASKING = ("get_device_name", "get_device_properties", "get_device_capability")

# A larger dictionary is data, and would take its time.
_MOST_SETTINGS = 1000

_CUDA = re.compile("cuda(?::([0-9]{1,4}))?")


class Call(Value):
    """One of the calls that lead to CUDA's start, with its variables at that moment and what stands in its code.

    Attributes:
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
    found = next(filter(None, (_numbers(call, index_of) for call in calls)), set())
    return found.pop() if len(found) == 1 else number_of_words(words)


def gpus_named(calls: Iterable[Call], index_of: Callable[[object], int | None]) -> tuple[int, ...]:
    """The GPUs that a call of the framework names as its ``device_ids``, as ``DataParallel`` has; each once."""
    named: Iterable[Any] = (call.variables.get("device_ids") for call in calls if call.is_frameworks)
    found = next((each for each in named if type(each) in (list, tuple)), ())
    indices = [each if type(each) is int else _index(each, index_of) for each in found]
    numbers = dict.fromkeys(index for index in indices if index is not None and index >= 0)
    return tuple(numbers) if set(indices) == set(numbers) else ()


def _numbers(call: Call, index_of: Callable[[object], int | None]) -> set[int]:
    own = _attributes_of(call.variables.get("self"))
    values = [value for name, value in call.variables.items() if not name.startswith("__")]
    if not call.is_frameworks:
        found = _indices([*values, *own.values()], index_of)
        if found:
            return found - {0} or found
        in_code = _indices(call.constants, index_of)
        # "cuda" may be a part of a name, as in torch.device("cuda", number).
        return in_code if in_code - {0} else _of_settings(values, index_of) or in_code
    if call.function in _ASKING:
        return set()
    found = _indices(values, index_of) | _plain_numbers(call, own.get("idx"))
    return found - {0} or found


def _of_settings(values: Iterable[object], index_of: Callable[[object], int | None]) -> set[int]:
    """The one number in dictionaries and objects, such as ``args.device``; 0 says nothing, nor do several."""
    found: set[int] = set()
    for value in values:
        inner = value if type(value) is dict else {} if type(value) is ModuleType else _attributes_of(value)
        # A copy: another thread may change it.
        found |= _indices(list(inner.values()) if len(inner) <= _MOST_SETTINGS else (), index_of)
    return found - {0} if len(found - {0}) == 1 else set()


def _attributes_of(value: object) -> Mapping[str, object]:
    # Any attribute may be computed by the script's code, and raise; a proxy's may make what it stands for.
    try:
        found = (each.__dict__.get("__dict__") for each in type(value).__mro__)
        is_plain = type(next(filter(None, found), None)) in (GetSetDescriptorType, MemberDescriptorType)
        own = object.__getattribute__(value, "__dict__") if is_plain else None
    except Exception as error:
        raise_if_from_script(error)
        return {}
    return own if type(own) is dict else {}


def _plain_numbers(call: Call, idx: object) -> set[int]:
    """Numbers that a framework's own call is given; a block that makes a GPU the current one keeps its as ``idx``."""
    device = call.variables.get("device", "")
    is_default = device is None and call.function == "cuda"
    return {each for each in (idx, 0 if is_default else device) if type(each) is int and each >= 0}


def _indices(values: Iterable[object], index_of: Callable[[object], int | None]) -> set[int]:
    return {index for index in (_index(value, index_of) for value in values) if index is not None}


def _index(value: object, index_of: Callable[[object], int | None]) -> int | None:
    # By its exact type: to ask an object of the script's for its class may run code of the script's.
    if type(value) is not str:
        return index_of(value)
    found = _CUDA.fullmatch(value)
    return int(found.group(1) or 0) if found else None


def number_of_words(words: Sequence[object]) -> int | None:
    """The one GPU that a command line names: ``cuda:2`` anywhere, a plain number where an option names a GPU."""
    # By their exact type, as above.
    texts, found = [str(word) if type(word) in (str, int) else "" for word in words], set()
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
