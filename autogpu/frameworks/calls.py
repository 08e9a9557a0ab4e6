"""The calls on the stack when a framework starts CUDA, with their variables."""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Iterator

import autogpu
from autogpu.frameworks.number import Call

# CPython's flag CO_OPTIMIZED: the code belongs to a function, and not to a module or a class.
_IS_FUNCTION = 1


def calls(framework: str, *, with_globals: bool = False) -> Iterator[Call]:
    """Yield the calls on the stack, innermost first, except calls of autogpu's functions.

    Args:
        framework: The name of the framework's module.
        with_globals: Add the global variables that the code of each call uses.
    """
    files = (autogpu.__file__, sys.modules[framework].__file__)
    own, its = (str(file).rpartition(os.sep)[0] + os.sep for file in files)
    frame = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(own):
            variables = variables_of(frame)
            names = code.co_names if with_globals else ()
            named = {name: frame.f_globals[name] for name in names if name in frame.f_globals}
            yield Call(code.co_name, {**named, **variables}, code.co_consts, code.co_filename.startswith(its))
        frame = frame.f_back  # type: ignore[assignment]


def variables_of(frame: FrameType) -> dict[str, object]:
    """Return a copy of the variables of ``frame``, without keeping them alive in the frame."""
    found = frame.f_locals
    variables = dict(found)
    # Up to Python 3.12, reading ``f_locals`` of a function makes a dictionary that the frame keeps until the function
    # ends. Python has no other way to read the variables. So clear the dictionary: otherwise data that the script
    # deletes in its main() stays in memory. Three references to the dictionary are those of the frame, of ``found`` and
    # of the call of getrefcount. If there are more, the script got the dictionary from locals(): leave it unchanged.
    if type(found) is dict and frame.f_code.co_flags & _IS_FUNCTION and sys.getrefcount(found) <= 3:
        found.clear()
    return variables
