"""Ctrl-C at a line of ours, except where Python lets no program guard against it."""

from __future__ import annotations

import ast
from pathlib import Path

from autogpu import lease as leases

OURS = str(Path(leases.__file__).resolve().parent)


def interrupt():
    raise KeyboardInterrupt


def is_cleaning_up(frame):
    """Whether a ``finally`` or ``except`` of ours is running: Python can't guard those against Ctrl-C."""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(OURS):
            if name not in CLEANING:
                CLEANING[name] = set(cleaning_lines(Path(name).read_text()))
            if frame.f_lineno in CLEANING[name]:
                return True
        frame = frame.f_back
    return False


def cleaning_lines(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Try):
            for part in [node.finalbody] + [handler.body for handler in node.handlers]:
                if part:
                    # Python 3.7 does not know where a statement ends.
                    yield from range(part[0].lineno, max(getattr(one, "lineno", 0) for one in ast.walk(part[-1])) + 1)


CLEANING: dict[str, set[int]] = {}
