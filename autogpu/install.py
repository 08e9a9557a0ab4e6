"""The start-up files in an environment: write them, prove that they work, and remove them.

Each file is replaced as a whole. If an installation stops halfway, Python still starts silently, and a second run
completes the installation. Every file that Python runs begins with :data:`MARKER`. A file without the marker is foreign
and is not touched.
"""

from __future__ import annotations

import base64
import enum
import hashlib
import os
import shlex
import site
import sys
import sysconfig
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Iterable, Iterator, Mapping

from autogpu import __version__
from autogpu.atomic_file import write_file
from autogpu.errors import Stopped
from autogpu.frozen import Value
from autogpu.lease import locks
from autogpu.snippet import run_snippet

MARKER = b"autogpu start-up file"
OWNER = "autogpu_autoload"

# The content of our file INSTALLER, which we write before the other files of the dist-info folder. Other installers,
# such as pip, write their own name into it, or don't write the file.
OURS = "autogpu"
UNKNOWN_INSTALLER = "another installer"

HOOK = "_autogpu_hook.py"
STEPS = "_autogpu_steps.py"
PTH = "autogpu.pth"
START = "autogpu.start"
SITECUSTOMIZE = "sitecustomize.py"


def path_starter(version: tuple[int, ...]) -> str:
    """Return the name of the file in site-packages that makes a Python of this version load the hook.

    Python 3.18 and later ignore the ``import`` lines of a ``.pth`` (PEP 829). Python 3.15 to 3.17 read both files, but
    import ``pkgutil`` for a ``.start``, which makes a bare start 1.7 times as long (``benchmarks/startup.py``).
    """
    return START if version >= (3, 18) else PTH


# The name of the hook's file and of the file that makes Python load it, keyed by method. The latter is written last.
METHODS: Mapping[str, tuple[str, str]] = {
    "pth": (HOOK, path_starter(sys.version_info[:2])),
    "sitecustomize": (SITECUSTOMIZE, SITECUSTOMIZE),
}

NAME = f"python{sys.version_info[0]}.{sys.version_info[1]}"

# Variables that decide whether, where and how Python stores compiled code.
_COMPILING = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "PYTHONOPTIMIZE")

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


# The metadata of the start-up files, for ``pip show``.
_METADATA = f"""\
Metadata-Version: 2.1
Name: autogpu-autoload
Version: {__version__}
Summary: {MARKER.decode()}s: load autogpu's import hook whenever this Python starts
License: Apache-2.0

Written by `autogpu install`. Undone by `autogpu uninstall` or `pip uninstall autogpu-autoload`.
"""


class InstallFault(enum.Enum):
    """The reason why the start-up files can't be installed or removed. The comments state what ``path`` is."""

    NO_FOLDER = enum.auto()  # the folder that the user named
    NOT_WRITTEN = enum.auto()  # a file or folder that the system refuses to write; detail: the system's reason
    NOT_REMOVED = enum.auto()  # likewise, when the files are removed
    OTHER_INSTALLER = enum.auto()  # the folder of the files; detail: the installer that wrote them
    NOT_OURS = enum.auto()  # a file that another program wrote
    NOT_LOADED = enum.auto()  # the hook that a fresh Python did not load; detail: its last line on stderr


class InstallProblem(Value):
    """A fault, with its details.

    Attributes:
        executable: The Python that did not load the hook.
        first: The file that this Python loaded instead; ``None`` if there is none.
    """

    fault: InstallFault
    path: Path
    detail: str = ""
    executable: str = ""
    first: Path | None = None


class InstallStopped(Stopped):
    """autogpu could not install or remove the start-up files of an environment."""

    problem: InstallProblem


class FreshStart(Value):
    """The observations from one start of an interpreter.

    Attributes:
        hook: The file of the autogpu hook among the finders; ``None`` if no hook is there.
        sitecustomize: The file that ``import sitecustomize`` finds first, ours or not.
        complaint: The text on stderr, or the reason why the start failed; empty if there was neither.
        timed_out: True if the interpreter did not end in time. This alone is not a fault.
    """

    hook: Path | None
    sitecustomize: Path | None
    complaint: str
    timed_out: bool = False


class ActiveEnvironment(Value):
    """The environment that is active in a shell. The environment variable ``variable`` contains its folder."""

    variable: str
    folder: Path


def active_elsewhere(
    environ: Mapping[str, str], prefix: str = sys.prefix, base_prefix: str = sys.base_prefix
) -> ActiveEnvironment | None:
    """Return the active environment if it is not the one at ``prefix``; ``None`` if it is, or if none is active.

    The active environment may have no autogpu, so that the shell finds the autogpu of another environment on ``PATH``.
    A virtual environment can be active inside a conda environment, so ``VIRTUAL_ENV`` comes first. ``CONDA_PREFIX`` is
    ignored if this Python belongs to a virtual environment: conda activates its base environment in every shell, even
    if the user starts the autogpu of a virtual environment by its path.
    """
    name = "VIRTUAL_ENV" if environ.get("VIRTUAL_ENV") else "CONDA_PREFIX"
    if not environ.get(name) or (name == "CONDA_PREFIX" and prefix != base_prefix):
        return None
    folder = Path(environ[name])
    with suppress(OSError):  # the folder does not exist any more
        if folder.samefile(prefix):
            return None
    return ActiveEnvironment(name, Path(os.path.abspath(str(folder))))  # noqa: PTH100  (resolve() follows links)


def pip_command(executable: str, action: str, *, has_pip: bool) -> str:
    """Return the command that installs or removes packages of an environment. uv makes environments without pip."""
    program = shlex.quote(executable)
    return f"{program} -m pip {action}" if has_pip else f"uv pip {action} --python {program}"


def site_dirs() -> tuple[Path, ...]:
    """Return the folders in which this Python reads ``.pth`` files. The folder of its own packages comes first."""
    paths = sysconfig.get_paths()
    # The site module of a virtualenv older than 20 has no getsitepackages().
    found = [paths["purelib"], paths["platlib"], *getattr(site, "getsitepackages", list)()]
    return tuple(map(Path, [*found, site.getusersitepackages()] if site.ENABLE_USER_SITE else found))


def is_site_dir(folder: Path) -> bool:
    """True if this Python reads ``.pth`` files in ``folder``. Any other folder has an effect only on PYTHONPATH."""
    return any(site_dir.is_dir() and site_dir.samefile(folder) for site_dir in site_dirs())


def install(
    folder: Path, method: str = "auto", *, executable: str = sys.executable, environ: Mapping[str, str] = os.environ
) -> tuple[Path, ...]:
    """Write or update the start-up files, check that a fresh interpreter loads them, and return the files written.

    If all files are in place, write nothing. They may also come from the wheel autogpu-autoload of the same version.
    Complete an interrupted installation. A failure leaves either no start-up file, or all files unchanged.
    """
    if not folder.is_dir():
        raise InstallStopped(InstallProblem(InstallFault.NO_FOLDER, folder))
    if method == "auto":
        method = "pth" if is_site_dir(folder) else "sitecustomize"
    plan = plan_install(folder, method)
    with _changing(folder, InstallFault.NOT_WRITTEN):
        loaded = {path: content for path, content in plan.items() if path.parent == folder}
        if _is_in_place(folder, loaded if owner_of(folder) else plan):
            _prove(folder, method, executable, environ)
            return ()
        _refuse_foreign_files(folder, plan)
        try:
            _remove_all(folder)
            for path, content in plan.items():
                path.parent.mkdir(exist_ok=True)
                write_file(path, content)
            _prove(folder, method, executable, environ)
        except BaseException:
            with suppress(OSError):
                _remove_all(folder)
            raise
    return tuple(plan)


def uninstall(folder: Path) -> tuple[Path, ...]:
    """Remove every start-up file of autogpu, whichever method and version wrote it. Return the removed files."""
    if not folder.is_dir():
        return ()
    with _changing(folder, InstallFault.NOT_REMOVED):
        _refuse_foreign_files(folder)
        return _remove_all(folder)


@contextmanager
def _changing(folder: Path, fault: InstallFault) -> Iterator[None]:
    """Lock the folder itself, without a lock file, against other installs. Turn an OSError into this fault."""
    try:
        with locks.Descriptor(os.open, str(folder), os.O_RDONLY) as opened:
            with suppress(OSError):  # a file system without locks
                locks.exclusive(opened.number)
            yield
    except OSError as error:
        raise InstallStopped(InstallProblem(fault, Path(error.filename or folder), str(error.strerror))) from error


def template_folder() -> Path:
    """Return the folder of the start-up templates: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent
    inside = package / "sitecustomize_template"
    return inside if inside.is_dir() else package.parent / inside.name


# The subfolder of a host's folder that Python can't import.
PRIVATE = "autogpu-private"


def is_hosts(hook: Path) -> bool:
    """True if `autogpu host-setup --all-pythons` has installed this hook."""
    return (hook.parent / PRIVATE).is_dir()


def run_folder() -> Path:
    """Return the folder that `autogpu run` puts on PYTHONPATH. Python can import only sitecustomize from it."""
    return template_folder() / "run"


def template_file(templates: Path, name: str) -> Path:
    if name == SITECUSTOMIZE:
        return run_folder() / name
    # The ending .txt keeps Python and security scanners from taking the template of a .pth for an active one.
    return templates / (name if name.endswith(".py") else f"{name}.txt")


def plan_install(folder: Path, method: str) -> dict[Path, bytes]:
    """Return the contents of the files that ``method`` needs, keyed by path; the one that loads the hook comes last."""
    templates = template_folder()
    hook, starter = METHODS[method]
    files = {folder / name: template_file(templates, name).read_bytes() for name in (STEPS, hook, starter)}
    switch = {folder / starter: files.pop(folder / starter)}
    return {**files, **_distribution(folder, {**files, **switch}), **switch}


def _files_of_ours(folder: Path) -> tuple[Path, ...]:
    """Return every file that some version of autogpu wrote, in removal order: those that load the hook come first."""
    found: list[Path] = []
    for name in (PTH, START, SITECUSTOMIZE, HOOK, STEPS):
        found += [folder / name] if has_marker(folder / name) else []
        # Temporary files of a killed install.
        found += sorted(folder.glob(f".{name}.*.tmp"))
    for source in (folder / SITECUSTOMIZE, folder / HOOK, folder / STEPS):
        # Without its source a compiled hook is a leftover of ours; a compiled sitecustomize may be foreign.
        if has_marker(source) or (source.name != SITECUSTOMIZE and not os.path.lexists(source)):
            found += sorted((folder / "__pycache__").glob(f"{source.stem}.*.pyc"))
    # The files of the dist-info folder come last, because pip warns about an empty dist-info folder.
    for info in distributions(folder):
        if _installer(info) == OURS:
            found += sorted(filter(Path.is_file, info.iterdir()), reverse=True)
    return tuple(found)


def _is_in_place(folder: Path, plan: Mapping[Path, bytes]) -> bool:
    is_whole = all(path.is_file() and path.read_bytes() == content for path, content in plan.items())
    # Ignore compiled files: if the files of the plan are the only sources, they were compiled from those.
    return is_whole and all(path in plan for path in _files_of_ours(folder) if path.suffix != ".pyc")


def _remove_all(folder: Path) -> tuple[Path, ...]:
    found = _files_of_ours(folder)
    for path in found:
        path.unlink()
    for made in (*distributions(folder), folder / "__pycache__"):
        with suppress(OSError):  # not empty: others use it
            made.rmdir()
    return found


def hook_in(folder: Path) -> Path:
    return next((folder / hook for hook, _ in METHODS.values() if has_marker(folder / hook)), folder / HOOK)


def distributions(folder: Path) -> tuple[Path, ...]:
    """Return the dist-info folders of the start-up files. An interrupted upgrade may leave several."""
    return tuple(sorted(path for path in folder.glob(f"{OWNER}-*.dist-info") if path.is_dir()))


def has_marker(path: Path) -> bool:
    """True if the first line of the file begins with the marker. Foreign files may contain it elsewhere."""
    try:
        with path.open("rb") as file:
            return file.readline(200).startswith(b"# " + MARKER)
    except OSError:
        return False


def owner_of(folder: Path) -> str:
    """Return the installer, such as pip, that wrote the start-up files; ``""`` if autogpu itself did, or nobody."""
    return next((owner for owner in map(_installer, distributions(folder)) if owner != OURS), "")


def _refuse_foreign_files(folder: Path, plan: Iterable[Path] = ()) -> None:
    owner = owner_of(folder)
    if owner:
        raise InstallStopped(InstallProblem(InstallFault.OTHER_INSTALLER, folder, owner))
    for path in plan:
        if path.parent == folder and os.path.lexists(path) and not has_marker(path):
            raise InstallStopped(InstallProblem(InstallFault.NOT_OURS, path))


def _distribution(folder: Path, owned: Mapping[Path, bytes]) -> dict[Path, bytes]:
    """Return the dist-info files, which show the start-up files to ``pip list``, ``pip uninstall`` and auditors."""
    info = folder / f"{OWNER}-{__version__}.dist-info"
    wheel = "Wheel-Version: 1.0\nGenerator: autogpu\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    texts = {"INSTALLER": f"{OURS}\n", "METADATA": _METADATA, "WHEEL": wheel}
    files = {info / name: text.encode() for name, text in texts.items()}
    record = info / "RECORD"
    rows = []
    for path, content in {**owned, **files}.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.append(f"{path.relative_to(folder).as_posix()},sha256={digest},{len(content)}\n")
    rows.append(f"{record.relative_to(folder).as_posix()},,\n")
    return {**files, record: "".join(rows).encode()}


def _installer(info: Path) -> str:
    with suppress(OSError):
        return (info / "INSTALLER").read_text(encoding="utf-8", errors="replace").strip()
    # `python -m installer` writes no INSTALLER. We write it first, so a killed install of ours left no other file.
    return UNKNOWN_INSTALLER if any(info.glob("[!.]*")) else OURS


def _prove(folder: Path, method: str, executable: str, environ: Mapping[str, str]) -> None:
    """Start a fresh interpreter. Raise :class:`InstallStopped` if it does not load the hook in ``folder``."""
    start = fresh_start(executable, _proving_environ(folder, method, environ))
    hook = folder / METHODS[method][0]
    if start.hook is None or start.hook.resolve() != hook.resolve():
        first = start.hook or (start.sitecustomize if method == "sitecustomize" else None)
        complaint = start.complaint.rpartition("\n")[2]
        raise InstallStopped(InstallProblem(InstallFault.NOT_LOADED, hook, complaint, executable, first))


def _proving_environ(folder: Path, method: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for the start that proves that a Python loads the hook in ``folder``."""
    # This start also compiles the hook for later starts, whose users may have no right to write here. Compile it with
    # Python's defaults, because later starts look for it there.
    fresh = {name: value for name, value in environ.items() if name not in _COMPILING}
    if not is_site_dir(folder):
        # Python reads such a folder only if it is on PYTHONPATH, so prove that case.
        fresh["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), environ.get("PYTHONPATH", "")]))
    elif method != "sitecustomize":
        # Another hook of ours on PYTHONPATH, as under `autogpu run`, would come first, and the start would prove
        # nothing. The method sitecustomize keeps PYTHONPATH: a sitecustomize there hides ours from scripts too.
        fresh.pop("PYTHONPATH", None)
    return fresh


def fresh_start(executable: str, environ: Mapping[str, str]) -> FreshStart:
    answer = run_snippet(executable, _QUESTION, environ)
    hook, sitecustomize = (path and Path(path) for path in answer.value or (None, None))
    return FreshStart(hook, sitecustomize, answer.error or answer.stderr, answer.timed_out)
