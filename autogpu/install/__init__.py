"""Write start-up files into an environment, prove that they work, and take them away again."""

from __future__ import annotations

import os
import shlex
import site
import sys
import sysconfig
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Iterator, Mapping, NamedTuple

from autogpu import __version__
from autogpu.errors import InstallError
from autogpu.install import files
from autogpu.install.packages import pip_source
from autogpu.install.proof import FreshStart, fresh_start
from autogpu.lease import locks

METHODS = ("auto", *files.STARTERS)
NAME = f"python{sys.version_info[0]}.{sys.version_info[1]}"

# Decide whether, where and how Python keeps what it compiles.
_COMPILING = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "PYTHONOPTIMIZE")


class Installed(NamedTuple):
    """An install wrote these files, none if all was in place; some are read only with ``folder`` on PYTHONPATH."""

    folder: Path
    written: tuple[Path, ...]
    on_pythonpath: bool


def site_dirs() -> tuple[Path, ...]:
    """Every folder in which this Python reads ``.pth`` files, the one for its packages first; never guessed by name."""
    paths = sysconfig.get_paths()
    # A virtualenv older than 20 brings its own site module, without this function.
    found = [paths["purelib"], paths["platlib"], *getattr(site, "getsitepackages", list)()]
    return tuple(map(Path, [*found, site.getusersitepackages()] if site.ENABLE_USER_SITE else found))


def install(
    target: Path | None = None,
    method: str = "auto",
    *,
    executable: str = sys.executable,
    environ: Mapping[str, str] = os.environ,
) -> Installed:
    """Write the start-up files, or bring them up to date, and prove them by a fresh interpreter.

    Twice is the same as once, and completes what was cut short. What fails leaves none of them, or all as they were.
    """
    folder = _target_folder(target)
    if not folder.is_dir():
        raise InstallError(f"{folder} is not a folder", remedy=f"make it first: mkdir -p {shlex.quote(str(folder))}")
    is_site_dir = any(site_dir.is_dir() and site_dir.samefile(folder) for site_dir in site_dirs())
    if method == "auto":
        method = "pth" if is_site_dir else "sitecustomize"
    with _changing(folder, "write"):
        plan = files.plan_install(folder, method, __version__, files.template_folder())
        files.refuse_foreign_files(folder, plan)
        written = files.put_in_place(folder, plan)
        proof = fresh_start(executable, _environ_for(folder, method, is_site_dir, environ))
        failure = _failure(proof, executable, folder, method)
        # What is as it was is no worse for a proof that fails now, as on a machine with much to do.
        if failure and written:
            files.remove_all(folder)
    if failure:
        raise failure
    return Installed(folder, written, not is_site_dir)


def uninstall(target: Path | None = None) -> tuple[Path, tuple[Path, ...]]:
    """Remove every start-up file of ours, whatever method and version wrote it; returns the folder, and which."""
    folder = _target_folder(target)
    if not folder.is_dir():
        return folder, ()
    with _changing(folder, "remove"):
        files.refuse_foreign_files(folder, ())
        return folder, files.remove_all(folder)


@contextmanager
def _changing(folder: Path, verb: str) -> Iterator[None]:
    """Keep other installs and uninstalls away, by a lock on the folder itself, which makes no file."""
    try:
        descriptor = os.open(str(folder), os.O_RDONLY)
        try:
            if locks.IS_AVAILABLE:
                with suppress(OSError):  # a file system without locks
                    locks.exclusive(descriptor)
            yield
        finally:
            os.close(descriptor)
    except OSError as error:
        new = f"python3 -m venv .venv && .venv/bin/pip install {pip_source()} && .venv/bin/autogpu install"
        remedy = f"run this as the owner of the environment, or make one of your own: {new}"
        raise InstallError(f"can't {verb} {error.filename or folder}: {error.strerror}", remedy=remedy) from error


def _target_folder(target: Path | None) -> Path:
    # Absolute, since the fresh interpreter starts elsewhere; links stay, since that is how Python spells it.
    return Path(os.path.abspath(str(target or site_dirs()[0])))  # noqa: PTH100  (resolve() follows links)


def _environ_for(folder: Path, method: str, is_site_dir: bool, environ: Mapping[str, str]) -> dict[str, str]:
    # This start compiles the hook for those that follow, some of which may not write here: as they will look for it.
    fresh = {name: value for name, value in environ.items() if name not in _COMPILING}
    if not is_site_dir:
        # Only a folder on PYTHONPATH is read there, so that is what has to be proved.
        fresh["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), environ.get("PYTHONPATH", "")]))
    elif method != "sitecustomize":
        # Another hook of ours on PYTHONPATH, as under `autogpu run`, would come first and prove nothing. For
        # a sitecustomize it stays: one on PYTHONPATH hides ours from the scripts of this user as well.
        fresh.pop("PYTHONPATH", None)
    return fresh


def _failure(proof: FreshStart, executable: str, folder: Path, method: str) -> InstallError | None:
    """What happened where a start did not load our file in our way."""
    hook, sitecustomize = folder / files.HOOK, folder / files.SITECUSTOMIZE
    is_through_sitecustomize = _same(proof.sitecustomize, sitecustomize)
    if _same(proof.hook, hook) and is_through_sitecustomize == (method == "sitecustomize"):
        return None
    seen = f": {proof.complaint.splitlines()[-1]}" if proof.complaint else ""
    what = f"a fresh {NAME} did not load {hook}{seen}"
    remedy = f"leave out --method, or look at what it does at start: {executable} -v -c pass"
    if method == "sitecustomize" and proof.sitecustomize and not is_through_sitecustomize:
        what = f"{NAME} runs {proof.sitecustomize} and so never {sitecustomize}"
        remedy = "use --method pth, which nothing hides"
    elif proof.hook:
        what = f"{NAME} loads {proof.hook} instead of {hook}"
        remedy = f"remove that one first: autogpu uninstall --target {proof.hook.parent}"
    return InstallError(what, remedy=remedy)


def _same(one: Path | None, other: Path) -> bool:
    return one is not None and one.resolve() == other.resolve()
