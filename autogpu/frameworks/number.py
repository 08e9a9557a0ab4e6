"""The number under which a program is about to use its GPU, as the program counts. Pure.

A rank has its number from its launcher (:mod:`autogpu.selection.ranks`). Else it is the one that the code which starts
CUDA holds in a variable or names itself; else the one that the command line gives to an option that names a GPU.
What a framework's own calls and values tell is up to its package.
"""

from __future__ import annotations

import re
from types import GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence

from autogpu.errors import raise_if_from_script
from autogpu.frozen import Value

# Options whose plain number is a GPU's. Others that only contain such a word are not:
# --per_device_train_batch_size 2.
NAMES = ("gpu", "gpu_id", "gpuid", "gpu_idx", "gpu_index", "device", "device_id", "cuda_device", "cuda_id")

# A larger dictionary is data, and would take its time.
_MOST_SETTINGS = 1000

_NUMBER, _HIGHEST = re.compile("((?:cuda|gpu):)?([0-9]{1,4})"), 9999

# The number that a name and its value tell; ``None`` if they tell none. Constants of code have the name ``""``.
NumberOf = Callable[[object, object], Optional[int]]


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
    calls: Iterable[Call], words: Sequence[object], numbers_of: Callable[[Call], set[int]]
) -> int | None:
    """The number of the GPU that a program is about to use; ``None`` if it tells none, or several.

    Args:
        calls: Innermost first. The first that tells a number counts, and of several in one call the one that is not 0.
        words: The arguments of the program; text, but scripts may put anything there.
        numbers_of: The numbers that a call tells.
    """
    found = next(filter(None, map(numbers_of, calls)), set())
    return found.pop() if len(found) == 1 else number_of_words(words)


def numbers_of_script(call: Call, number_of: NumberOf) -> set[int]:
    """The numbers that a call of the script tells."""
    own = attributes_of(call.variables.get("self"))
    variables = [(name, value) for name, value in call.variables.items() if not name.startswith("__")]
    found = numbers_in([*variables, *own.items()], number_of)
    if found:
        return found - {0} or found
    in_code = numbers_in([("", constant) for constant in call.constants], number_of)
    # "cuda" may be a part of a name, as in torch.device("cuda", number).
    return in_code if in_code - {0} else _of_settings(variables, number_of) or in_code


def _of_settings(variables: Iterable[tuple[str, object]], number_of: NumberOf) -> set[int]:
    """The one number in dictionaries and objects, such as ``args.device``; 0 says nothing, nor do several."""
    found: set[int] = set()
    for _, value in variables:
        is_dict = issubclass(type(value), dict)
        inner: Any = value if is_dict else {} if type(value) is ModuleType else attributes_of(value)
        # A copy: another thread may change it. By dict's own methods: a class of the script's may have others.
        found |= numbers_in(list(dict.items(inner)) if dict.__len__(inner) <= _MOST_SETTINGS else (), number_of)
    return found - {0} if len(found - {0}) == 1 else set()


def attributes_of(value: object) -> Mapping[str, object]:
    """The attributes that an object itself holds, without running code of the script."""
    # Any attribute may be computed by the script's code, and raise; a proxy's may make what it stands for.
    try:
        found = (each.__dict__.get("__dict__") for each in type(value).__mro__)
        is_plain = type(next(filter(None, found), None)) in (GetSetDescriptorType, MemberDescriptorType)
        own = object.__getattribute__(value, "__dict__") if is_plain else None
    except Exception as error:
        raise_if_from_script(error)
        return {}
    return own if type(own) is dict else {}


def numbers_in(items: Iterable[tuple[object, object]], number_of: NumberOf) -> set[int]:
    """The numbers that names with their values tell."""
    return {number for number in (number_of(name, value) for name, value in items) if number is not None}


def number_of_value(name: object, value: object, names: Sequence[str] = NAMES) -> int | None:
    """``cuda:2`` and ``gpu:2`` under any name; a plain number, also as text, under one of the ``names``."""
    is_gpu = type(name) is str and name.lstrip("-").rpartition(".")[2].replace("-", "_").lower() in names
    # By the exact type: to ask an object of the script's for its class may run code of the script's.
    if type(value) is int:
        return value if is_gpu and 0 <= value <= _HIGHEST else None
    found = _NUMBER.fullmatch(value) if type(value) is str else None
    return int(found.group(2)) if found and (is_gpu or found.group(1)) else None


def number_of_words(words: Sequence[object]) -> int | None:
    """The one GPU that a command line names: ``cuda:2`` anywhere, a plain number where an option names a GPU."""
    # By their exact type, as above.
    texts, found = [str(word) if type(word) in (str, int) else "" for word in words], set()
    for before, word in zip(["", *texts], texts):
        # --name value, --name=value, group.name=value
        name, equals, value = word.partition("=")
        if not equals:
            name, value = before if before.startswith("-") else "", word
        found.add(number_of_value(name, value))
    found.discard(None)
    return found.pop() if len(found) == 1 else None
