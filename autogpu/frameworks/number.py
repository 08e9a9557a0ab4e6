"""Find the GPU number that a program is about to use. Pure.

The number of a rank comes from its launcher (:mod:`autogpu.engines.launchers`). For other programs, the code that
starts CUDA is searched first: its variables, then its constants. If it has no number, the command line is read. A
framework's package adds the numbers in the framework's own calls.
"""

from __future__ import annotations

import re
from types import GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence

from autogpu.errors import raise_if_from_script
from autogpu.frozen import Value

# Options whose plain number is a GPU number. An option that only contains such a word does not count:
# --per_device_train_batch_size 2.
NAMES = ("gpu", "gpu_id", "gpuid", "gpu_idx", "gpu_index", "device", "device_id", "cuda_device", "cuda_id")

# Larger dictionaries contain data, and take too long to search.
_MOST_SETTINGS = 1000

_NUMBER = re.compile("((?:cuda|gpu):)?([0-9]{1,4})")
_HIGHEST = 9999

# A function that returns the GPU number in a value, given its name (``""`` for a constant); ``None`` if there is none.
NumberOf = Callable[[object, object], Optional[int]]


class Call(Value):
    """A frame of the call stack at the moment when a framework starts CUDA.

    Attributes:
        function: The name of the function that runs in the frame.
        variables: The variables of the frame, keyed by name.
        constants: The constants in the function's code.
        is_frameworks: True if the function belongs to the framework, in which ``device`` may be a plain number.
    """

    function: str
    variables: Mapping[str, object]
    constants: Sequence[object] = ()
    is_frameworks: bool = False


def number_of_process(
    calls: Iterable[Call], words: Sequence[object], numbers_of: Callable[[Call], set[int]]
) -> int | None:
    """Return the GPU number that a program is about to use; ``None`` if none is found, or several.

    Args:
        calls: The call stack, innermost frame first. Only the first frame with a number counts.
        words: The arguments of the program. They are text, unless the script has replaced them.
        numbers_of: Returns the GPU numbers in a frame.
    """
    found = next(filter(None, map(numbers_of, calls)), set())
    return found.pop() if len(found) == 1 else number_of_words(words)


def numbers_of_script(call: Call, number_of: NumberOf) -> set[int]:
    """Return the GPU numbers in a frame of the script: in its variables, else in its constants and settings."""
    own = attributes_of(call.variables.get("self"))
    variables = [(name, value) for name, value in call.variables.items() if not name.startswith("__")]
    found = numbers_in([*variables, *own.items()], number_of)
    if found:
        return found - {0} or found
    in_code = numbers_in([("", constant) for constant in call.constants], number_of)
    # The constant "cuda" is number 0, but may be only a part of a name, as in torch.device("cuda", number).
    return in_code if in_code - {0} else _of_settings(variables, number_of) or in_code


def _of_settings(variables: Iterable[tuple[str, object]], number_of: NumberOf) -> set[int]:
    """Return the number in dictionaries and objects, such as ``args.device``, if there is exactly one besides 0."""
    found: set[int] = set()
    for _, value in variables:
        is_dict = issubclass(type(value), dict)
        inner: Any = value if is_dict else {} if type(value) is ModuleType else attributes_of(value)
        # Copy the items, because another thread may change them. Use dict's own methods, because a subclass of the
        # script may replace them.
        found |= numbers_in(list(dict.items(inner)) if dict.__len__(inner) <= _MOST_SETTINGS else (), number_of)
    return found - {0} if len(found - {0}) == 1 else set()


def attributes_of(value: object) -> Mapping[str, object]:
    """Return the attributes in an object's ``__dict__``, without running code of the script."""
    # Normal access may run the script's code: a property may raise, and a proxy may create its object.
    try:
        found = (each.__dict__.get("__dict__") for each in type(value).__mro__)
        is_plain = type(next(filter(None, found), None)) in (GetSetDescriptorType, MemberDescriptorType)
        own = object.__getattribute__(value, "__dict__") if is_plain else None
    except Exception as error:
        raise_if_from_script(error)
        return {}
    return own if type(own) is dict else {}


def numbers_in(items: Iterable[tuple[object, object]], number_of: NumberOf) -> set[int]:
    return {number for number in (number_of(name, value) for name, value in items) if number is not None}


def number_of_value(name: object, value: object, names: Sequence[str] = NAMES) -> int | None:
    """Return the GPU number in a value: ``cuda:2`` or ``gpu:2`` under any name, a plain number under the ``names``."""
    is_gpu = type(name) is str and name.lstrip("-").rpartition(".")[2].replace("-", "_").lower() in names
    # Compare the exact type, because isinstance may run the script's code.
    if type(value) is int:
        return value if is_gpu and 0 <= value <= _HIGHEST else None
    found = _NUMBER.fullmatch(value) if type(value) is str else None
    return int(found.group(2)) if found and (is_gpu or found.group(1)) else None


def number_of_words(words: Sequence[object]) -> int | None:
    """Return the GPU number in the arguments of a program: ``cuda:2`` anywhere, a plain number after a GPU option."""
    # Compare the exact type, because isinstance may run the script's code.
    texts = [str(word) if type(word) in (str, int) else "" for word in words]
    found = set()
    for before, word in zip(["", *texts], texts):
        # --name value, --name=value, group.name=value
        name, equals, value = word.partition("=")
        if not equals:
            name = before if before.startswith("-") else ""
            value = word
        found.add(number_of_value(name, value))
    found.discard(None)
    return found.pop() if len(found) == 1 else None
