"""Write start-up files into an environment, prove that they work, and take them away again.

Returns values and prints nothing; the command line words them.
"""

from __future__ import annotations

import os
import shlex
import site
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping

from autogpu import __version__
from autogpu.errors import InstallError
from autogpu.install import files
from autogpu.install.files import File, files_of_ours, plan_install, template_folder
from autogpu.install.proof import FreshStart, fresh_start
from autogpu.install.source import pip_source
from autogpu.install.transaction import Transaction, alone

__all__ = [
    "METHODS",
    "File",
    "FreshStart",
    "Installed",
    "Interpreter",
    "Removed",
    "files_of_ours",
    "fresh_start",
    "install",
    "plan_install",
    "template_folder",
    "this_interpreter",
    "uninstall",
]

METHODS = ("auto", *files.STARTERS)


@dataclass(frozen=True)
class Interpreter:
    """The Python that start-up files are for.

    Attributes:
        site_dir: Where its packages go; the default folder for start-up files.
        site_dirs: Every folder in which it reads ``.pth`` files.
        externally_managed: The system's package manager owns its folders (PEP 668).
    """

    executable: str
    version: tuple[int, int]
    site_dir: Path
    site_dirs: tuple[Path, ...]
    externally_managed: bool

    @property
    def name(self) -> str:
        """As people call it: ``python3.11``."""
        return f"python{self.version[0]}.{self.version[1]}"


@dataclass(frozen=True)
class Installed:
    """What an install found and did.

    Attributes:
        method: The one used, never "auto".
        written: New or changed files; empty if everything was in place.
        removed: Files of an earlier version or another method that had no use any more.
        on_pythonpath: Only a Python with ``folder`` on PYTHONPATH reads the files.
        proof: The start of a fresh interpreter that loaded the hook.
    """

    interpreter: Interpreter
    folder: Path
    method: str
    written: tuple[Path, ...]
    unchanged: tuple[Path, ...]
    removed: tuple[Path, ...]
    on_pythonpath: bool
    proof: FreshStart


@dataclass(frozen=True)
class Removed:
    """What an uninstall did: the files it removed; none if there were none."""

    folder: Path
    removed: tuple[Path, ...]


def this_interpreter() -> Interpreter:
    """The running Python, as sysconfig and site know it; never a guess from names of folders."""
    paths = sysconfig.get_paths()
    site_dirs = [paths["purelib"], paths["platlib"]]
    # A virtualenv older than 20 brings its own site module, without these functions.
    site_dirs += getattr(site, "getsitepackages", list)()
    if site.ENABLE_USER_SITE:
        site_dirs.append(site.getusersitepackages())
    return Interpreter(
        executable=sys.executable,
        version=(sys.version_info[0], sys.version_info[1]),
        site_dir=Path(paths["purelib"]),
        site_dirs=tuple(Path(folder) for folder in dict.fromkeys(site_dirs)),
        externally_managed=sys.prefix == sys.base_prefix
        and Path(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED").exists(),
    )


def install(
    target: Path | None = None,
    method: str = "auto",
    *,
    interpreter: Interpreter | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Installed:
    """Write the start-up files, or bring them up to date, and prove them by a fresh interpreter.

    What was written is taken back if the proof fails. Twice is the same as once.

    Args:
        target: Another folder than the interpreter's site-packages.
        method: One of :data:`METHODS`.
        interpreter: The running one if ``None``.
        environ: What the fresh interpreter inherits.

    Raises:
        InstallError: Nothing has been changed.
    """
    python = interpreter or this_interpreter()
    folder = _target_folder(python, target)
    is_site_dir = _is_site_dir(folder, python)
    if python.externally_managed and is_site_dir:
        raise InstallError(
            f"{folder} belongs to the operating system's package manager",
            remedy="install into a virtual environment: python3 -m venv .venv && "
            f".venv/bin/pip install {pip_source()} && .venv/bin/autogpu install",
        )
    if method == "auto":
        method = "sitecustomize" if not is_site_dir else "start" if python.version >= (3, 15) else "pth"
    try:
        with alone(folder):
            plan = plan_install(folder, method, __version__, template_folder())
            files.refuse_foreign_files(folder, plan)
            transaction = Transaction(folder, plan)
            with transaction:
                proof = fresh_start(python.executable, _environ_for(folder, method, is_site_dir, environ))
                _verify_start(proof, python, folder, method)
    except OSError as error:
        raise _cannot("write", folder, error) from error
    return Installed(
        interpreter=python,
        folder=folder,
        method=method,
        written=transaction.written,
        unchanged=transaction.unchanged,
        removed=transaction.obsolete,
        on_pythonpath=not is_site_dir,
        proof=proof,
    )


def uninstall(target: Path | None = None, *, interpreter: Interpreter | None = None) -> Removed:
    """Remove every start-up file of ours, whatever method and version wrote it, and no foreign one.

    Raises:
        InstallError: A file can't be removed, or the files belong to a distribution that pip installed.
    """
    folder = _target_folder(interpreter or this_interpreter(), target)
    removed: tuple[Path, ...] = ()
    try:
        with alone(folder):
            files.refuse_foreign_files(folder, ())
            removed = files_of_ours(folder)
            for path in removed:
                files.remove(path)
    except OSError as error:
        raise _cannot("remove", folder, error) from error
    return Removed(folder, removed)


def _target_folder(python: Interpreter, target: Path | None) -> Path:
    # Absolute, since the fresh interpreter starts elsewhere; links stay, since that is how Python spells it.
    folder = Path(os.path.abspath(str(target or python.site_dir)))  # noqa: PTH100  (resolve() follows links)
    if not folder.is_dir():
        raise InstallError(f"{folder} is not a folder", remedy=f"make it first: mkdir -p {shlex.quote(str(folder))}")
    return folder


def _is_site_dir(folder: Path, python: Interpreter) -> bool:
    return any(site_dir.is_dir() and site_dir.samefile(folder) for site_dir in python.site_dirs)


def _environ_for(folder: Path, method: str, is_site_dir: bool, environ: Mapping[str, str]) -> dict[str, str]:
    fresh = dict(environ)
    # Looking must not leave anything behind, such as compiled files for another level of optimization.
    fresh["PYTHONDONTWRITEBYTECODE"] = "1"
    if not is_site_dir:
        # Only a folder on PYTHONPATH is read there, so that is what has to be proved.
        rest = fresh.get("PYTHONPATH", "")
        fresh["PYTHONPATH"] = f"{folder}{os.pathsep}{rest}" if rest else str(folder)
    elif method != "sitecustomize":
        # Another hook of ours on PYTHONPATH, as under `autogpu run`, would come first and prove nothing. For
        # a sitecustomize it stays: one on PYTHONPATH hides ours from the scripts of this user as well.
        fresh.pop("PYTHONPATH", None)
    return fresh


def _verify_start(proof: FreshStart, python: Interpreter, folder: Path, method: str) -> None:
    """Let pass only a start that loaded our file in our way; say what happened instead."""
    through_sitecustomize = _same(proof.sitecustomize, folder / files.SITECUSTOMIZE)
    if _same(proof.hook, folder / files.HOOK) and through_sitecustomize == (method == "sitecustomize"):
        return
    if method == "sitecustomize" and proof.sitecustomize and not through_sitecustomize:
        raise InstallError(
            f"{python.name} runs {proof.sitecustomize} and so never {folder / files.SITECUSTOMIZE}",
            remedy="use --method pth, which nothing hides",
        )
    if proof.hook:
        raise InstallError(
            f"{python.name} loads {proof.hook} instead of {folder / files.HOOK}",
            remedy=f"remove that one first: autogpu uninstall --target {proof.hook.parent}",
        )
    seen = f": {proof.complaint.splitlines()[-1]}" if proof.complaint else ""
    if not _is_site_dir(folder, python) and method != "sitecustomize":
        raise InstallError(
            f"{python.name} reads no {files.STARTERS[method][0]} in {folder}{seen}",
            remedy="leave out --method; a folder on PYTHONPATH needs a sitecustomize.py",
        )
    raise InstallError(
        f"a fresh {python.name} did not load {folder / files.HOOK}{seen}",
        remedy=f"look at what it does at start: {python.executable} -v -c pass",
    )


def _same(one: Path | None, other: Path) -> bool:
    return one is not None and one.exists() and other.exists() and one.samefile(other)


def _cannot(verb: str, what: Path, error: OSError) -> InstallError:
    path = error.filename or what
    return InstallError(
        f"can't {verb} {path}: {error.strerror}",
        remedy="run this as the owner of the environment, or make one of your own: "
        f"python3 -m venv .venv && .venv/bin/pip install {pip_source()} && .venv/bin/autogpu install",
    )
