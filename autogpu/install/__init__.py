"""Write start-up files into an environment, prove that they work, and take them away again."""

from __future__ import annotations

import json
import os
import shlex
import site
import subprocess
import sys
import sysconfig
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Iterator, Mapping, NamedTuple

from autogpu import __version__
from autogpu.errors import InstallError
from autogpu.install import files
from autogpu.install.packages import pip_source
from autogpu.lease import locks

METHODS = ("auto", *files.STARTERS)
NAME = f"python{sys.version_info[0]}.{sys.version_info[1]}"

# Decide whether, where and how Python keeps what it compiles.
_COMPILING = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "PYTHONOPTIMIZE")

TIMEOUT_S = 60
TIMED_OUT = "timed out"

_QUESTION = """
import json, sys
hooks = [f for f in sys.meta_path if getattr(f, "__name__", "") == "_autogpu_hook"]
for hook in hooks:
    hook.find_spec(hook.frameworks[0] + ".")  # this loads the second file, which Python compiles for later starts
from importlib.machinery import PathFinder
spec = PathFinder.find_spec("sitecustomize")
print()
print(json.dumps((getattr(hooks[0], "__file__", None) if hooks else None, spec and spec.origin)))
"""


class Answer(NamedTuple):
    """The ``value`` that a program printed as JSON, or an ``error`` that says why there is none."""

    value: Any = None
    error: str = ""
    stderr: str = ""


class FreshStart(NamedTuple):
    """One start of an interpreter.

    Attributes:
        hook: The file of the autogpu hook among the finders; ``None`` without one.
        sitecustomize: The file that ``import sitecustomize`` finds first, ours or not.
        complaint: What it printed on stderr, or that it failed; empty if all was quiet.
    """

    hook: Path | None
    sitecustomize: Path | None
    complaint: str


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
    """Name the reason where a start did not load our file in our way."""
    hook, sitecustomize = folder / files.HOOK, folder / files.SITECUSTOMIZE
    runs, loads = proof.sitecustomize, proof.hook
    if method == "sitecustomize" and runs and runs.resolve() != sitecustomize.resolve():
        what = f"{NAME} runs {runs} and so never {sitecustomize}"
        return InstallError(what, remedy="use --method pth, which nothing hides")
    if loads is None:
        seen = f": {proof.complaint.splitlines()[-1]}" if proof.complaint else ""
        remedy = f"leave out --method, or look at what it does at start: {executable} -v -c pass"
        return InstallError(f"a fresh {NAME} did not load {hook}{seen}", remedy=remedy)
    if loads.resolve() != hook.resolve():
        remedy = f"remove that one first: autogpu uninstall --target {loads.parent}"
        return InstallError(f"{NAME} loads {loads} instead of {hook}", remedy=remedy)
    return None


def ask(executable: str, program: str, environ: Mapping[str, str], deadline_s: float) -> Answer:
    """Start a Python with ``environ``, and read the last line of what ``program`` prints: start-up code may print."""
    try:
        done = subprocess.run(
            [executable, "-c", program],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=dict(environ),
            # Not the current folder, which would come first in sys.path.
            cwd=os.path.dirname(executable) or None,  # noqa: PTH120
            timeout=deadline_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Answer(error=f"{TIMED_OUT} after {deadline_s:.0f} s")
    except OSError as error:
        return Answer(error=f"it does not start: {error.strerror}")
    stderr = done.stderr.decode(errors="replace").strip()
    try:
        return Answer(json.loads(done.stdout.decode(errors="replace").strip().splitlines()[-1]), stderr=stderr)
    except (ValueError, IndexError):
        if done.returncode < 0:
            return Answer(error=f"it ended by signal {-done.returncode}")
        return Answer(error=stderr.rpartition("\n")[2] or f"it ended with status {done.returncode}")


def fresh_start(executable: str, environ: Mapping[str, str]) -> FreshStart:
    answer = ask(executable, _QUESTION, environ, TIMEOUT_S)
    hook, sitecustomize = (path and Path(path) for path in answer.value or (None, None))
    return FreshStart(hook, sitecustomize, answer.error or answer.stderr)
