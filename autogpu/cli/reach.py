"""Reasons why the Python that `autogpu run` starts can't load autogpu."""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Mapping, Sequence

from autogpu.snippet import run_snippet

_OLDEST = (3, 7)
_HAS_HOOK = "import json, sys; print(json.dumps('_autogpu_hook' in sys.modules))"

# Python's options that take a value. The value is the rest of the word, or the next word.
_WITH_VALUE = "cmWX"
_WITHOUT_AUTOGPU = {
    "E": "-E makes Python ignore PYTHONPATH",
    "I": "-I makes Python ignore PYTHONPATH",
    "S": "-S keeps Python from reading start-up files",
}


def why_not_reached(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return the reason why a command's Python will not load autogpu.

    Return ``""`` if it will load autogpu, or if the command is not a Python. Programs that the command starts are
    not examined.
    """
    program, options = _python_of(command, environ.get("PATH"))
    if not program:
        return ""
    name = Path(program).resolve().name
    if _is_too_old(name):
        return f"{name} is older than Python 3.7"
    found = [letter for letter in _letters(options) if letter in _WITHOUT_AUTOGPU]
    # If `autogpu install` was run in its environment, the Python has the hook without PYTHONPATH.
    if not found or run_snippet(program, _HAS_HOOK, environ, options=[f"-{letter}" for letter in found]).value:
        return ""
    return "; ".join(dict.fromkeys(_WITHOUT_AUTOGPU[letter] for letter in found))


def _is_too_old(name: str) -> bool:
    version = re.fullmatch(r"python(\d)\.?(\d+)?[a-z]*", name)
    return version is not None and (int(version[1]), int(version[2] or 99)) < _OLDEST


def _python_of(command: Sequence[str], path: str | None) -> tuple[str, Sequence[str]]:
    """Return the path and options of the Python that a command starts, directly or by a script's first line."""
    program = shutil.which(command[0], path=path)
    options = command[1:]
    if program and not _is_python(program):
        words = _interpreter_words(program)
        program = shutil.which(words[0], path=path) if words else None
        options = words[1:]
    return (program, options) if program and _is_python(program) else ("", ())


def _interpreter_words(script: str) -> list[str]:
    """Return the command in the ``#!`` line of a script, without ``env``; ``[]`` if there is no such line."""
    line = b""
    with suppress(OSError), Path(script).open("rb") as file:
        line = file.readline(256)
    words = line[2:].decode(errors="replace").split() if line.startswith(b"#!") else []
    if words and Path(words[0]).name == "env":
        return [word for word in words[1:] if word != "-S"]
    return words


def _is_python(program: str) -> bool:
    return re.match(r"python[0-9.]*[td]*$", Path(program).name) is not None


def _letters(options: Sequence[str]) -> list[str]:
    """Return the one-letter options before the script, ``-c`` or ``-m``."""
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
