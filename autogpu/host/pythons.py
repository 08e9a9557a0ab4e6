"""The base Pythons of a host. A base Python is one that virtual environments are made from."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Iterable, Iterator

from autogpu.frozen import Value
from autogpu.host.model import HostFault, HostProblem, NotUsable, SetupStopped
from autogpu.snippet import run_snippet

# Pythons of the distribution, Pythons built from source, and conda. Each conda environment is a base Python.
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
import json, os, sys
about = sys.implementation
print(json.dumps([about.name, sys.version_info[:2], about.cache_tag, os.path.dirname(os.__file__)]))
"""
_DEADLINE_S = 20.0

# -S: no start-up file runs. -B: Python writes no compiled file.
OPTIONS = ("-I", "-S", "-B")

# Python started with -S never reads these subfolders of a standard library.
_INSTALLED = {"site-packages", "dist-packages"}


class BasePython(Value):
    """The interpreter of a base Python.

    Attributes:
        version: The version, such as ``"3.11"``.
        tag: The cache tag in the names of its compiled files, such as ``"cpython-311"``.
        library: The folder of its standard library.
    """

    executable: str
    version: str
    tag: str
    library: Path


def find_pythons(root: Path, named: Iterable[str] = ()) -> tuple[list[BasePython], list[HostProblem]]:
    """Return the usable base Pythons, one per standard library, and a problem for each Python that is left out.

    Root runs these Pythons, and all users run the files that these Pythons compile. So a Python is left out if anyone
    but root can change a part of it.

    Raises:
        SetupStopped: A Python in ``named`` is left out.
    """
    found: dict[Path, BasePython] = {}
    left_out = []
    _checked.clear()
    for name in named:
        try:
            python = _examine(Path(os.path.abspath(name)), root)  # noqa: PTH100  (_examine follows links)
        except NotUsable as error:
            raise SetupStopped(error.problem(name)) from None
        found[python.library] = python
    for executable in _candidates(root):
        try:
            python = _examine(executable, root)
            found.setdefault(python.library, python)
        except NotUsable as error:
            left_out.append(error.problem(executable))
    return sorted(found.values(), key=lambda python: str(python.library)), left_out


def _candidates(root: Path) -> Iterator[Path]:
    for pattern in _PATTERNS:
        for path in sorted(root.glob(pattern)):
            # The patterns also match python3.11-config and python3.11-gdb.py.
            if path.name.rpartition(".")[2].rstrip("t").isdigit() or path.name == "python3":
                yield path


def _examine(path: Path, root: Path) -> BasePython:
    """Check every file that a Python reads at its start, and then ask it for its version."""
    executable, library = _checked_files(path, root)
    answer = run_snippet(str(executable), _QUESTION, {}, _DEADLINE_S, OPTIONS).value
    if not answer or answer[0] != "cpython" or tuple(answer[1]) < _OLDEST:
        raise NotUsable(HostFault.UNSUPPORTED)
    if Path(answer[3]).resolve() != library:
        raise NotUsable(HostFault.OTHER_LIBRARY, str(library))
    return BasePython(str(executable), ".".join(map(str, answer[1])), answer[2], library)


def _checked_files(path: Path, root: Path) -> tuple[Path, Path]:
    """Return the executable of a Python and the folder of its standard library, after a check of their files.

    Follow links first. If Python is started by a link, it reads the ``pyvenv.cfg`` next to the link, and that file can
    make it use a standard library that belongs to a user.
    """
    try:
        executable = path.resolve(strict=True)
        if any((folder / "pyvenv.cfg").exists() for folder in executable.parents[:2]):
            raise NotUsable(HostFault.IN_ENVIRONMENT)
        library = _library_of(executable)
        for part in (executable, library, *_files_of(library)):
            open_part = part_open_to_others(part, root)
            if open_part:
                raise NotUsable(HostFault.PYTHON_OPEN_TO_OTHERS, str(open_part))
        return executable, library
    except (OSError, RuntimeError) as error:  # resolve() raises RuntimeError for a loop of links before 3.13
        raise NotUsable(HostFault.NOT_EXAMINED, getattr(error, "strerror", None) or str(error)) from None


def _library_of(executable: Path) -> Path:
    """Find a Python's standard library without starting it: look for os.py, as CPython's getpath does."""
    minor = executable.name.rpartition("python")[2]
    pattern = f"python{minor if '.' in minor else '3.*'}/os.py"
    prefix = executable.parent.parent
    found = [file for name in ("lib", "lib64") for file in sorted((prefix / name).glob(pattern))]
    if len({file.resolve() for file in found}) != 1:
        raise NotUsable(HostFault.NO_LIBRARY)
    return found[0].resolve().parent


def _files_of(library: Path) -> Iterator[Path]:
    yield from library.parent.glob("libpython*")
    for folder, folders, files in os.walk(str(library)):
        folders[:] = [name for name in folders if name not in _INSTALLED]
        for name in (*folders, *files):
            yield Path(folder, name)


_checked: dict[Path, bool] = {}


def part_open_to_others(path: Path, root: Path) -> Path | None:
    """Return the file, or the folder above it, that a user other than root can change; ``None`` if there is none."""
    real = path.resolve() if path.is_symlink() else path
    for part in (real, *real.parents):
        if part not in _checked:
            _checked[part] = _is_changeable(part, root)
        if _checked[part]:
            return part
        if part == root:
            break
    return None


def is_only_roots(path: Path, root: Path) -> bool:
    _checked.clear()
    try:
        return part_open_to_others(path, root) is None
    except (OSError, RuntimeError):
        return False


def _is_changeable(part: Path, root: Path) -> bool:
    owner = root.stat()
    try:
        status = part.stat()
    except FileNotFoundError:  # the target of a broken link: only users who can change its folders can create it
        return False
    if status.st_uid != owner.st_uid or status.st_mode & stat.S_IWOTH:
        return True
    # If a file has an access control list, the group bits of its mode are the mask of the list. If they allow writing,
    # a user in the list may write the file.
    return bool(status.st_mode & stat.S_IWGRP) and (status.st_gid != owner.st_gid or _has_access_list(part))


def _has_access_list(part: Path) -> bool:
    try:
        os.getxattr(str(part), "system.posix_acl_access")
    except OSError:
        return False
    return True
