"""The start-up files of one folder: as they should look, as they are, and how the one becomes the other.

Everything that is written here carries :data:`MARKER`; a file without it is foreign and stays.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.util
import io
import marshal
import os
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Iterable, Mapping

from autogpu.errors import InstallError
from autogpu.install.source import pip_source

MARKER = b"autogpu start-up file"
OWNER = "autogpu_autoload"

# What the file INSTALLER says; pip and others write theirs. Nothing: an install was killed before it was written.
OURS = ("autogpu", "")

_TEMPORARY = ".tmp"

HOOK = "_autogpu_hook.py"
PTH = "autogpu.pth"
START = "autogpu.start"
SITECUSTOMIZE = "sitecustomize.py"

# What makes Python load the hook, by method; the last one written is what switches it on.
STARTERS: Mapping[str, tuple[str, ...]] = {
    "pth": (PTH,),
    # Side by side: Python 3.15 and later take the .start and ignore the .pth, earlier ones know only that.
    "start": (START, PTH),
    "sitecustomize": (SITECUSTOMIZE,),
}


@dataclass(frozen=True)
class File:
    """One file as it should look."""

    path: Path
    content: bytes


def template_folder() -> Path:
    """The files as they will look in an environment: inside the installed package, beside it in a checkout.

    Raises:
        InstallError: This autogpu came without them.
    """
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "sitecustomize_template", package.parent / "sitecustomize_template"):
        if is_ours(folder / HOOK):
            return folder
    raise InstallError(
        f"{package} has no sitecustomize_template folder, so there is nothing to install from",
        remedy=f"install autogpu again: pip install --force-reinstall {pip_source()}",
    )


def plan_install(folder: Path, method: str, version: str, templates: Path) -> tuple[File, ...]:
    """The files that ``method`` needs in ``folder``, in the order to write them: what switches on comes last.

    Args:
        folder: Where Python will read them.
        method: A key of :data:`STARTERS`.
        version: autogpu's, for the distribution that owns the files.
        templates: See :func:`template_folder`.
    """
    starters = [File(folder / name, (templates / name).read_bytes()) for name in STARTERS[method]]
    sources = [File(folder / HOOK, (templates / HOOK).read_bytes())]
    sources += [file for file in starters if file.path.suffix == ".py"]
    compiled = [File(cache_path(source.path), _compiled(source)) for source in sources]
    owned = [sources[0], *compiled, *starters]
    return (sources[0], *compiled, *_distribution(folder, version, owned), *starters)


def cache_path(source: Path) -> Path:
    """Where this Python looks for the compiled ``source``, whatever PYTHONPYCACHEPREFIX says today."""
    name = Path(importlib.util.cache_from_source(str(source), optimization="")).name
    return source.parent / "__pycache__" / name


def files_of_ours(folder: Path) -> tuple[Path, ...]:
    """Every file in ``folder`` that some version of autogpu wrote, in the order to remove them."""
    found = [folder / name for name in (PTH, START, SITECUSTOMIZE) if is_ours(folder / name)]
    for info in distributions(folder):
        if _installer(info) in OURS:
            found += sorted(path for path in info.iterdir() if path.is_file()) or [info]
    for source in (folder / SITECUSTOMIZE, folder / HOOK):
        # Without its source a compiled hook is a leftover of ours; a compiled sitecustomize may be foreign.
        if is_ours(source) or (source.name == HOOK and not os.path.lexists(source)):
            found += sorted((folder / "__pycache__").glob(f"{source.stem}.*.pyc"))
            found += sorted(folder.glob(f"{source.stem}.py[co]"))  # where Python 2 puts them
    if is_ours(folder / HOOK):
        found.append(folder / HOOK)
    # What an install left that was killed.
    for name in (PTH, START, SITECUSTOMIZE, HOOK):
        found += sorted(folder.glob(f".{name}.*{_TEMPORARY}"))
    caches = [cache_path(folder / name) for name in (HOOK, SITECUSTOMIZE)]
    for cache in caches:
        found += sorted(cache.parent.glob(f".{cache.name.partition('.')[0]}.*{_TEMPORARY}"))
    cache = caches[0].parent
    if cache.is_dir() and not any(cache.iterdir()):
        found.append(cache)
    return tuple(dict.fromkeys(found))


def temporary_of(path: Path) -> Path:
    """Where a file is written before it is put in its place: Python skips dot-files, and reads no such ending."""
    return path.with_name(f".{path.name}.new{_TEMPORARY}")


def backup_of(path: Path) -> Path:
    """The second name of a file while another one takes its place."""
    return path.with_name(f".{path.name}.old{_TEMPORARY}")


def target_of(temporary: Path) -> Path:
    """The file that one of :func:`temporary_of` is for."""
    return temporary.with_name(temporary.name[1 : -len(f".new{_TEMPORARY}")])


def distributions(folder: Path) -> tuple[Path, ...]:
    """The dist-info folders of the distribution that owns the files; several after an upgrade cut short."""
    return tuple(sorted(path for path in folder.glob(f"{OWNER}-*.dist-info") if path.is_dir()))


def is_ours(path: Path) -> bool:
    """Whether ``path`` is a file whose first line begins with the marker; others may speak of it."""
    try:
        with path.open("rb") as file:
            return file.readline(200).startswith(b"# " + MARKER)
    except OSError:
        return False


def refuse_foreign_files(folder: Path, plan: Iterable[File]) -> None:
    """Stop before the first byte is written if a foreign file is in the way.

    Raises:
        InstallError: Naming that file.
    """
    for info in distributions(folder):
        owner = _installer(info)
        if owner not in OURS:
            raise InstallError(
                f"the start-up files in {folder} belong to {owner} ({info.name})",
                remedy="upgrade or remove them the same way: pip uninstall autogpu-autoload",
            )
    for file in plan:
        path = file.path
        if path.parent == folder and os.path.lexists(path) and not is_ours(path):
            raise InstallError(
                f"{path} exists and was not written by autogpu",
                remedy="move it away, or choose another way with --method"
                if path.name == SITECUSTOMIZE
                else "move it away and run autogpu install again",
            )


def remove(path: Path) -> None:
    """Remove ``path``, and its folder if that was made for such files and is empty now."""
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
        return
    path.unlink()
    if path.parent.name == "__pycache__" or path.parent.name.endswith(".dist-info"):
        try:
            path.parent.rmdir()
        except OSError:
            return  # not empty: others use it


def _compiled(source: File) -> bytes:
    """The ``.pyc`` for ``source``; the existing one if it is right, since another may differ in its bytes.

    Hash-based and unchecked (PEP 552): it stays valid when a container layer, rsync or conda-pack changes the
    source's time, where Python would compile anew at every start of a read-only environment; and a start need
    not compare. The price, an edited source that isn't seen, is small: it is not meant to be edited.
    """
    unchecked = (0b01).to_bytes(4, "little")
    header = importlib.util.MAGIC_NUMBER + unchecked + importlib.util.source_hash(source.content)
    code: CodeType = compile(source.content, str(source.path), "exec", dont_inherit=True, optimize=0)
    try:
        existing = cache_path(source.path).read_bytes()
        if existing.startswith(header) and marshal.loads(existing[len(header) :]) == code:
            return existing
    except (OSError, EOFError, ValueError, TypeError):
        pass
    return header + marshal.dumps(code)


def _distribution(folder: Path, version: str, owned: Iterable[File]) -> list[File]:
    """The dist-info that makes the files known to ``pip list``, ``pip uninstall`` and auditors."""
    info = folder / f"{OWNER}-{version}.dist-info"
    metadata = (
        "Metadata-Version: 2.1\n"
        "Name: autogpu-autoload\n"
        f"Version: {version}\n"
        f"Summary: {MARKER.decode()}s: load autogpu's import hook whenever this Python starts\n"
        "License: Apache-2.0\n"
        "\n"
        "Written by `autogpu install`. Undone by `autogpu uninstall` or `pip uninstall autogpu-autoload`.\n"
    )
    wheel = "Wheel-Version: 1.0\nGenerator: autogpu\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = [
        File(info / "METADATA", metadata.encode()),
        File(info / "WHEEL", wheel.encode()),
        File(info / "INSTALLER", b"autogpu\n"),
    ]
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    for file in [*owned, *files]:
        digest = base64.urlsafe_b64encode(hashlib.sha256(file.content).digest()).rstrip(b"=").decode()
        rows.writerow((file.path.relative_to(folder).as_posix(), f"sha256={digest}", len(file.content)))
    rows.writerow(((info / "RECORD").relative_to(folder).as_posix(), "", ""))
    return [*files, File(info / "RECORD", table.getvalue().encode())]


def _installer(info: Path) -> str:
    try:
        return (info / "INSTALLER").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
