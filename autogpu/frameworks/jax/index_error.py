"""Recognize an ``IndexError`` that ends a script because JAX has fewer devices than the script expects.

The failed line is read from the script's source, as for a traceback. It counts only if it indexes a list of JAX's
devices: the result of ``jax.devices()``, or a variable that holds such a list.
"""

from __future__ import annotations

import ast
import linecache
from itertools import islice
from types import ModuleType, TracebackType
from typing import Any, Callable, Mapping, Sequence

from autogpu.errors import raise_if_from_script
from autogpu.frameworks.number import attributes_of

_UNKNOWN = object()


def devices_needed(error: BaseException, shown: int, listing: Sequence[Callable[..., object]]) -> int:
    """Return how many devices the failed line needs at least; 0 if ``error`` has another cause.

    Args:
        shown: The number of GPUs that JAX has.
        listing: The functions of JAX that list its devices.
    """
    trace = error.__traceback__
    if type(error) is not IndexError or str(error) != "list index out of range" or trace is None:
        return 0
    while trace.tb_next is not None:
        trace = trace.tb_next
    file = trace.tb_frame.f_code.co_filename
    variables = {**trace.tb_frame.f_globals, **trace.tb_frame.f_locals}
    linecache.checkcache(file)
    try:
        tree = ast.parse("".join(linecache.getlines(file, trace.tb_frame.f_globals)))
    except (SyntaxError, ValueError, RecursionError) as raised:
        raise_if_from_script(raised)
        return 0
    nodes = [node for node in _failed(tree, trace) if _lists(node, variables, listing)]
    return max([_needed(_value_of(_index_of(node), variables), shown) for node in nodes], default=0)


def _failed(tree: ast.AST, trace: TracebackType) -> list[ast.Subscript]:
    """Return the index expression that failed; before Python 3.11, all index expressions of its line."""
    nodes: list[Any] = [node for node in ast.walk(tree) if isinstance(node, ast.Subscript)]
    nodes = [node for node in nodes if not isinstance(node.slice, ast.Slice)]
    positions: Any = getattr(trace.tb_frame.f_code, "co_positions", tuple)()
    at = next(islice(positions, trace.tb_lasti // 2, None), (None,))
    if None not in at:
        return [node for node in nodes if (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset) == at]
    return [node for node in nodes if node.lineno <= trace.tb_lineno <= getattr(node, "end_lineno", node.lineno)]


def _needed(index: object, shown: int) -> int:
    if type(index) is not int:
        return shown + 1  # the value is unknown, but it was too large for the list
    return index + 1 if index >= 0 else -index


def _lists(node: ast.Subscript, variables: Mapping[str, object], listing: Sequence[Callable[..., object]]) -> bool:
    """True if the index expression ``node`` reads a list of JAX's GPUs."""
    if not isinstance(node.value, ast.Call):
        found = _value_of(node.value, variables)
        return type(found) is list and bool(found) and all(map(_is_gpu, found))
    platforms = [_value_of(argument, variables) for argument in node.value.args]
    is_for_gpus = platforms in ([], ["gpu"], ["cuda"]) and not node.value.keywords
    return is_for_gpus and any(_value_of(node.value.func, variables) is each for each in listing)


def _is_gpu(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] in ("jax", "jaxlib") and getattr(value, "platform", "") == "gpu"


def _index_of(node: ast.Subscript) -> ast.AST:
    return getattr(node.slice, "value", node.slice) if type(node.slice).__name__ == "Index" else node.slice


def _value_of(node: ast.AST, variables: Mapping[str, object]) -> object:
    """Return the value of a name, an attribute, a dictionary entry or a constant, without running the script's code."""
    if isinstance(node, ast.Name):
        return variables.get(node.id, _UNKNOWN)
    if isinstance(node, ast.Attribute):
        owner = _value_of(node.value, variables)
        own = owner.__dict__ if type(owner) is ModuleType else attributes_of(owner)
        return own.get(node.attr, _UNKNOWN)
    if isinstance(node, ast.Subscript):
        owner = _value_of(node.value, variables)
        key = _value_of(_index_of(node), variables)
        return owner.get(key, _UNKNOWN) if type(owner) is dict and type(key) is str else _UNKNOWN
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError) as error:
        raise_if_from_script(error)
        return _UNKNOWN
