"""The calls that lead to a framework's start of CUDA, with the variables of each."""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Iterator

import autogpu
from autogpu.frameworks.number import Call

# CO_OPTIMIZED of CPython: the code of a function, and not of a module or a class.
_IS_FUNCTION = 1


def calls(framework: str, *, with_globals: bool = False) -> Iterator[Call]:
    """The calls that lead here, innermost first, but for our own.

    Args:
        framework: The name of its module.
        with_globals: The variables are also the global ones whose names stand in the code of the call.
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
    """A copy of the variables of ``frame``, which keeps nothing alive that the script deletes later."""
    found = frame.f_locals
    variables = dict(found)
    # Up to 3.12 a function's frame keeps this copy, and with it all that the script deletes before the function ends.
    # Not one that the script has asked for itself, nor a module's own names. The frame, this name and the call count.
    if type(found) is dict and frame.f_code.co_flags & _IS_FUNCTION and sys.getrefcount(found) <= 3:
        found.clear()
    return variables
