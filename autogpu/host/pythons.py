"""The base Pythons of a host: those that virtual environments are made from."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Iterable, Iterator

from autogpu.errors import InstallError
from autogpu.frozen import Value
from autogpu.snippet import run_snippet

# Where a host keeps the Pythons of all its users: the distribution's, those built from source, and conda's, whose
# environments are base Pythons as well.
_PATTERNS = (
    "usr/bin/python3.*",
    "usr/local/bin/python3.*",
    "usr/local/*/bin/python3",
    "opt/*/bin/python3",
    "opt/*/*/bin/python3",
    "opt/*/envs/*/bin/python3",
)
_OLDEST = (3, 7)
_QUESTION = """
import json, sys
folder = __import__("os").path.dirname(__import__("os").__file__)
print(json.dumps([sys.implementation.name, sys.version_info[:2], sys.implementation.cache_tag, folder]))
"""
_DEADLINE_S = 20.0


class BasePython(Value):
    """One interpreter.

    Attributes:
        version: Such as ``"3.11"``.
        tag: How it names what it compiles, such as ``"cpython-311"``.
        library: The folder of its standard library.
    """

    executable: str
    version: str
    tag: str
    library: Path


def find_pythons(root: Path, named: Iterable[str] = ()) -> tuple[list[BasePython], list[str]]:
    """Find the base Pythons from 3.7 on, one for each standard library; and a line for each that is left out.

    All of them are run, by root: so only those that root alone can change are, and those that the administrator names.

    Raises:
        InstallError: One that is ``named`` is no CPython from 3.7 on.
    """
    found: dict[Path, BasePython] = {}
    left_out = []
    for name in named:
        python = _ask(os.path.abspath(name))  # noqa: PTH100  (a virtual environment's Python is a link)
        if python is None:
            raise InstallError(f"{name} is no CPython 3.7 or later", remedy="name the python of another folder")
        found[python.library] = python
    # What a link leads to: beside a link in a user's folder may lie a file that leads Python to that user's code.
    for executable in dict.fromkeys(path.resolve() for path in _candidates(root)):
        foreign = _foreign_part(executable, root)
        python = None if foreign else _ask(str(executable))
        if python is not None:
            foreign = _foreign_part(python.library, root)
        if foreign:
            left_out.append(f"{executable} is left out: not only root can change {foreign}")
        elif python is not None:
            found.setdefault(python.library, python)
    return sorted(found.values(), key=lambda python: str(python.library)), left_out


def _candidates(root: Path) -> Iterator[Path]:
    for pattern in _PATTERNS:
        for path in sorted(root.glob(pattern)):
            # Neither python3.11-config nor python3.11-gdb.py.
            if path.name.rpartition(".")[2].rstrip("t").isdigit() or path.name == "python3":
                yield path


def _foreign_part(path: Path, root: Path) -> Path | None:
    """Return the part of a path that others than root can change, itself or a folder above it; ``None`` without one."""
    owner = root.stat()
    for part in (path, *path.parents):
        status = part.stat()
        is_groups = status.st_mode & stat.S_IWGRP and status.st_gid != owner.st_gid
        if status.st_uid != owner.st_uid or status.st_mode & stat.S_IWOTH or is_groups:
            return part
        if part == root:
            break
    return None


def _ask(executable: str) -> BasePython | None:
    # Without site, so that no start-up file runs.
    answer = run_snippet(executable, _QUESTION, {}, _DEADLINE_S, ("-I", "-S")).value
    if not answer or answer[0] != "cpython" or tuple(answer[1]) < _OLDEST:
        return None
    _, version, tag, library = answer
    return BasePython(executable, ".".join(map(str, version)), tag, Path(library))
