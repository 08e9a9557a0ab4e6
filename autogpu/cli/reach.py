"""Whether PYTHONPATH brings autogpu to the Python that a command starts."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from contextlib import suppress
from typing import Mapping, Sequence

from autogpu.snippet import run_snippet

_OLDEST = (3, 7)
_HAS_HOOK = "import json, sys; print(json.dumps('_autogpu_hook' in sys.modules))"

# Options of Python that take the rest of their word, or the next word.
_WITH_VALUE = "cmWX"
_WITHOUT_AUTOGPU = {
    "E": "-E makes Python ignore PYTHONPATH",
    "I": "-I makes Python ignore PYTHONPATH",
    "S": "-S keeps Python from reading start-up files",
}


def why_not_reached(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return why the Python that a command starts runs without autogpu; ``""`` if it has it, or if it is no Python.

    Only the command itself is looked at: not the programs that it starts.
    """
    program, options = _python_of(command, environ.get("PATH"))
    if not program:
        return ""
    name = os.path.basename(os.path.realpath(program))  # noqa: PTH119
    version = re.fullmatch(r"python(\d)\.?(\d+)?[a-z]*", name)
    if version and (int(version[1]), int(version[2] or 99)) < _OLDEST:
        return f"{name} is older than Python 3.7"
    letters = _letters(options)
    found = [letter for letter in letters if letter in _WITHOUT_AUTOGPU]
    # An environment with a hook of its own needs no PYTHONPATH.
    if not found or run_snippet(program, _HAS_HOOK, environ, options=[f"-{letter}" for letter in found]).value:
        return ""
    return _WITHOUT_AUTOGPU[found[0]]


def _python_of(command: Sequence[str], path: str | None) -> tuple[str, Sequence[str]]:
    """The interpreter that a command starts, by itself or by the first line of a script, and its options."""
    program = shutil.which(command[0], path=path)
    options = command[1:]
    if program and not _is_python(program):
        line = b""
        with suppress(OSError), open(program, "rb") as file:  # noqa: PTH123
            line = file.readline(256)
        words = shlex.split(line[2:].decode(errors="replace")) if line.startswith(b"#!") else []
        if words and os.path.basename(words[0]) == "env":  # noqa: PTH119
            words = [word for word in words[1:] if word != "-S"]
        program = shutil.which(words[0], path=path) if words else None
        options = words[1:]
    return (program, options) if program and _is_python(program) else ("", ())


def _is_python(program: str) -> bool:
    return re.match(r"python[0-9.]*[td]*$", os.path.basename(program)) is not None  # noqa: PTH119


def _letters(options: Sequence[str]) -> list[str]:
    """The one-letter options in front of the script, ``-c`` or ``-m``."""
    found: list[str] = []
    words = iter(options)
    for word in words:
        if not word.startswith("-") or word.startswith("--") or word == "-":
            break
        for place, letter in enumerate(word[1:], 1):
            if letter in _WITH_VALUE:
                if letter in "cm":
                    return found
                if place == len(word) - 1:
                    next(words, "")
                break
            found.append(letter)
    return found
