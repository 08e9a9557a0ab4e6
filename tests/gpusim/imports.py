"""Names that a wheel's libraries import from NVIDIA's libraries, and stubs for names that the simulated ones lack.

TensorFlow and JAX open one of NVIDIA's libraries when they need it, and run even if it lacks a function. PyTorch is
linked against them: the loader fails if one library, version or function is missing. So :func:`record` reads
the imports of an environment's libraries and writes them to a list, and the build makes a stub for each missing one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterable

from tests.support.environments import CACHE, site_packages

LISTS = CACHE / "gpusim" / "imports"
OF_NVIDIA = re.compile(r"_*(cu[A-Zdbfprst]|nccl|nv[A-Zrs])")
LIBRARY_OF_NVIDIA = re.compile(r"lib(cu|nccl|nv)\w*\.so")
NEEDED = re.compile(r"\(NEEDED\).*\[(.*)\]")
FIND_TORCH = """
import importlib.util
spec = importlib.util.find_spec("torch")
print(spec.submodule_search_locations[0] if spec else "")
"""
VERSIONS_OF = re.compile(r"Version: \d+\s+File: (\S+)")
VERSION = re.compile(r"Name: (\S+)\s+Flags:")
UNDEFINED = re.compile(r"\s(FUNC|OBJECT|NOTYPE)\s+GLOBAL\s+\w+\s+UND\s+([^@\s]+)")
DEFINED = re.compile(r"\s(?:FUNC|OBJECT|NOTYPE)\s+\w+\s+\w+\s+\d+\s+([^@\s]+)")


@dataclass(frozen=True)
class Imports:
    """Versions, functions and variables that libraries import from other libraries.

    Attributes:
        versions: Pairs of a library and a version that it must define; the version is empty for the library itself.
        functions: Names of imported functions.
        variables: Names of imported variables.
    """

    versions: frozenset[tuple[str, str]] = frozenset()
    functions: frozenset[str] = frozenset()
    variables: frozenset[str] = frozenset()

    def __or__(self, other: Imports) -> Imports:
        return Imports(*(mine | theirs for mine, theirs in zip(self.kinds, other.kinds)))

    @property
    def kinds(self) -> tuple[frozenset[Any], ...]:
        return self.versions, self.functions, self.variables

    def text(self) -> str:
        return json.dumps([sorted(kind) for kind in self.kinds], indent=0)


def record(python: Path, package: str) -> None:
    """Record the imports of a package in an environment, for every later build."""
    _record_folder(site_packages(python) / package)


def record_torch(command: str) -> tuple[str, ...]:
    """Record the imports of a command's PyTorch and of the shell's, and return the libraries to preload.

    The plain wheel of PyTorch comes with NVIDIA's own libraries, and its RPATH finds them before ``LD_LIBRARY_PATH``.
    They need functions that the simulated driver lacks, so the loader must load the simulated ones first.

    Args:
        command: A program; if it is a Python, its PyTorch counts as well as that of the ``python`` on ``PATH``.
    """
    preloaded: set[str] = set()
    for name in {command, "python"}:
        python = shutil.which(name)
        if python and Path(name).name.startswith("python"):
            asked = subprocess.run([python, "-c", FIND_TORCH], capture_output=True, text=True, timeout=60, check=False)
            folder = Path(asked.stdout.strip() or "-")
            wanted = _record_folder(folder) if folder.is_dir() else Imports()
            if (folder.parent / "nvidia").is_dir():
                preloaded.update(library for library, _ in wanted.versions)
    return tuple(sorted(preloaded))


def _record_folder(folder: Path) -> Imports:
    kept = LISTS / f"{hashlib.sha256(f'{folder} {folder.stat().st_mtime_ns}'.encode()).hexdigest()[:16]}.json"
    if kept.exists():
        return _read(kept)
    wanted = of_libraries(sorted(folder.rglob("*.so*")))
    kept.parent.mkdir(parents=True, exist_ok=True)
    # Two test processes may both find the list missing and write it.
    new = kept.with_suffix(f".{os.getpid()}.new")
    new.write_text(wanted.text())
    new.replace(kept)
    return wanted


def _read(kept: Path) -> Imports:
    versions, functions, variables = json.loads(kept.read_text())
    return Imports(frozenset(map(tuple, versions)), frozenset(functions), frozenset(variables))


def recorded() -> Imports:
    """Return the imports of all recorded packages: the simulated server has every CUDA version installed."""
    wanted = Imports()
    for kept in sorted(LISTS.glob("*.json")):
        wanted |= _read(kept)
    return wanted


def of_libraries(libraries: Iterable[Path]) -> Imports:
    """Return the imports from NVIDIA's libraries, as the ELF files of ``libraries`` list them."""
    wanted = Imports()
    for library in libraries:
        wanted |= _of_one(_readelf(library, "-d", "-V", "--dyn-syms"))
    return wanted


def defined(library: Path) -> frozenset[str]:
    return frozenset(DEFINED.findall(_readelf(library, "--dyn-syms")))


def stubs(wanted: Imports, present: frozenset[str]) -> str:
    """Return C code that defines each missing name. A missing function logs its call, and fails."""
    functions = (f"MISSING({name})" for name in sorted(wanted.functions - present))
    # The importing library does not contain the size of a variable; 4096 bytes are a guess.
    variables = (f"API char {name}[4096];" for name in sorted(wanted.variables - present))
    return "\n".join(['#include "missing.h"', *functions, *variables]) + "\n"


def version_script(versions: Iterable[str]) -> str:
    """Return a linker script of versions without symbols. A symbol without a version fits every reference."""
    return "".join(f"{version} {{ }};\n" for version in sorted(versions))


def _of_one(text: str) -> Imports:
    versions = {(name, "") for name in NEEDED.findall(text) if LIBRARY_OF_NVIDIA.match(name)}
    file = ""
    for line in text.splitlines():
        found = VERSIONS_OF.search(line)
        if found:
            file = found[1]
        found = VERSION.search(line)
        if found and LIBRARY_OF_NVIDIA.match(file):
            versions.add((file, found[1]))
    names = [(kind, name) for kind, name in UNDEFINED.findall(text) if OF_NVIDIA.match(name)]
    return Imports(
        frozenset(versions),
        frozenset(name for kind, name in names if kind != "OBJECT"),
        frozenset(name for kind, name in names if kind == "OBJECT"),
    )


def _readelf(library: Path, *what: str) -> str:
    command = ["readelf", "--wide", *what, str(library)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    # A file named *.so* may be no library. The output of readelf is then empty.
    return done.stdout
