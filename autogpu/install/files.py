"""The start-up files of one folder: as they should be, as they are, and how the one becomes the other.

Each is put in its place whole, in an order in which every stop leaves a Python that starts silently; to run it again
completes it. Every file that Python runs carries :data:`MARKER`; one without it is foreign and stays.
"""

from __future__ import annotations

import base64
import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Iterable, Mapping, Sequence, Tuple

from autogpu.atomic_file import write_file
from autogpu.errors import InstallError

MARKER = b"autogpu start-up file"
OWNER = "autogpu_autoload"

# What the file INSTALLER says, the first to be written of those beside it; pip and others write theirs, or none.
OURS = "autogpu"

HOOK = "_autogpu_hook.py"
STEPS = "_autogpu_steps.py"
PTH = "autogpu.pth"
START = "autogpu.start"
SITECUSTOMIZE = "sitecustomize.py"

# A path, and what should be in it.
File = Tuple[Path, bytes]

# What makes Python load the hook, by method; the last one written is what switches it on.
STARTERS: Mapping[str, tuple[str, ...]] = {
    # Python 3.15 and later take the .start and ignore the .pth, earlier ones know only that.
    "pth": (START, PTH),
    "sitecustomize": (SITECUSTOMIZE,),
}


def template_folder() -> Path:
    """The files as they will be in an environment: inside the installed package, beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "sitecustomize_template"
    for folder in (inside, package.parent / inside.name):
        if folder.is_dir():
            return folder
    raise InstallError(
        f"{package} has no sitecustomize_template folder, so there is nothing to install from",
        remedy="install autogpu again: python -m pip install --force-reinstall autogpu",
    )


def template(templates: Path, name: str) -> Path:
    """The template of a file, in autogpu's wheel under a name that neither Python nor an auditor takes for a switch."""
    return templates / (name if name.endswith(".py") else f"{name}.txt")


def plan_install(folder: Path, method: str, version: str, templates: Path) -> tuple[File, ...]:
    """The files that ``method`` needs in ``folder``, in the order to write them: what switches on comes last."""
    names = (STEPS, HOOK, *STARTERS[method])
    steps, hook, *starters = [(folder / name, template(templates, name).read_bytes()) for name in names]
    return (steps, hook, *_distribution(folder, version, [steps, hook, *starters]), *starters)


def files_of_ours(folder: Path) -> tuple[Path, ...]:
    """Every file in ``folder`` that some version of autogpu wrote, in the order to remove them: the switches first."""
    found: list[Path] = []
    for name in (PTH, START, SITECUSTOMIZE, HOOK, STEPS):
        found += [folder / name] if is_ours(folder / name) else []
        # What a killed install or uninstall left.
        found += sorted(folder.glob(f".{name}.*.tmp"))
    for info in distributions(folder):
        if _installer(info) == OURS:
            found += sorted((path for path in info.iterdir() if path.is_file()), reverse=True) or [info]
    for source in (folder / SITECUSTOMIZE, folder / HOOK, folder / STEPS):
        # Without its source a compiled hook is a leftover of ours; a compiled sitecustomize may be foreign.
        if is_ours(source) or (source.name != SITECUSTOMIZE and not os.path.lexists(source)):
            found += compiled_from(source)
    cache = folder / "__pycache__"
    if cache.is_dir() and not any(cache.iterdir()):
        found.append(cache)
    return tuple(found)


def compiled_from(source: Path) -> list[Path]:
    """The files that any Python has compiled of ``source``."""
    return sorted((source.parent / "__pycache__").glob(f"{source.stem}.*.pyc"))


def put_in_place(folder: Path, plan: Sequence[File]) -> tuple[Path, ...]:
    """Write the files, and have no other of ours there; returns which, none if all was in place.

    Where anything differs, all are taken away first. A failure leaves nothing.
    """
    paths = [path for path, _ in plan]
    expected = {*paths, *(compiled for path in paths for compiled in compiled_from(path))}
    is_whole = all(path.is_file() and path.read_bytes() == content for path, content in plan)
    if is_whole and expected.issuperset(files_of_ours(folder)):
        return ()
    try:
        remove_all(folder)
        for path, content in plan:
            path.parent.mkdir(exist_ok=True)
            write_file(path, content)
    except BaseException:
        with suppress(OSError):
            remove_all(folder)
        raise
    return tuple(paths)


def remove_all(folder: Path) -> tuple[Path, ...]:
    """Remove every start-up file of ours, and a folder made for them once it is empty; returns which."""
    found = files_of_ours(folder)
    for path in found:
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
            continue
        path.unlink()
        if path.parent != folder:
            with suppress(OSError):  # not empty: others use it
                path.parent.rmdir()
    return found


def distributions(folder: Path) -> tuple[Path, ...]:
    """The dist-info folders of the distribution that owns the files; several after an upgrade cut short."""
    return tuple(sorted(path for path in folder.glob(f"{OWNER}-*.dist-info") if path.is_dir()))


def is_ours(path: Path) -> bool:
    """The first line of the file begins with the marker; others may speak of it."""
    try:
        with path.open("rb") as file:
            return file.readline(200).startswith(b"# " + MARKER)
    except OSError:
        return False


def refuse_foreign_files(folder: Path, plan: Iterable[File]) -> None:
    """Raise an InstallError that names a foreign file which is in the way."""
    for info in distributions(folder):
        owner = _installer(info)
        if owner != OURS:
            # An environment that uv has made has no pip.
            pip = "uv pip" if owner == "uv" else "pip"
            raise InstallError(
                f"the start-up files in {folder} belong to {owner} ({info.name})",
                remedy=f"upgrade or remove them the same way: {pip} uninstall autogpu-autoload",
            )
    for path, _ in plan:
        if path.parent == folder and os.path.lexists(path) and not is_ours(path):
            remedy = "move it away and run autogpu install again"
            if path.name == SITECUSTOMIZE:
                remedy = "move it away, or choose another way with --method"
            raise InstallError(f"{path} exists and was not written by autogpu", remedy=remedy)


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
    texts = {"INSTALLER": f"{OURS}\n", "METADATA": metadata, "WHEEL": wheel}
    files = [(info / name, text.encode()) for name, text in texts.items()]
    record, rows = info / "RECORD", []
    for path, content in [*owned, *files]:
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.append(f"{path.relative_to(folder).as_posix()},sha256={digest},{len(content)}\n")
    rows.append(f"{record.relative_to(folder).as_posix()},,\n")
    return [*files, (record, "".join(rows).encode())]


def _installer(info: Path) -> str:
    with suppress(OSError):
        return (info / "INSTALLER").read_text(encoding="utf-8", errors="replace").strip()
    # `python -m installer` writes none; an install of ours that was killed has written nothing else.
    return "another installer" if any(info.glob("[!.]*")) else OURS
