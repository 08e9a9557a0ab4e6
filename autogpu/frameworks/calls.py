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
    """Yield the calls of the stack, innermost first, without those of autogpu.

    Args:
        framework: The name of its module.
        with_globals: Add the global variables whose names are in the code of the call.
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
    """Return a copy of the variables of ``frame``."""
    found = frame.f_locals
    variables = dict(found)
    # Up to Python 3.12, reading ``f_locals`` of a function makes a dictionary that the frame keeps until the function
    # ends: the data that a script deletes in its main() would stay in memory. No other way of Python's reads the
    # variables. A dictionary that the script has, by locals(), has more than three references: the frame's, this
    # name's and the call's.
    if type(found) is dict and frame.f_code.co_flags & _IS_FUNCTION and sys.getrefcount(found) <= 3:
        found.clear()
    return variables
