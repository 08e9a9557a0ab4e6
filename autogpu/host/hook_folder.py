"""The folder that gives autogpu to every Python of a host.

A link leads to the current folder. An upgrade builds a new folder beside it, and then replaces the link by one rename::

    /usr/local/lib/autogpu -> autogpu-0.1.0-5be6f3a0
      sitecustomize.py        the hook, and the only module that Python can import from the folder on PYTHONPATH
      autogpu-private/        Python can't import this folder, because its name has a hyphen
        _autogpu_steps.py  _autogpu_host.py  autogpu/  host.json

Users can't write into the folder, so Python could not save compiled files there. Therefore `autogpu host-setup` writes
compiled files for each Python that it finds.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Callable, Iterator, Mapping, Sequence

import autogpu
from autogpu.devices import nvml
from autogpu.frozen import Value, replace
from autogpu.host.model import HostFault, HostProblem, SetupStopped
from autogpu.host.pythons import OPTIONS, BasePython
from autogpu.install import PRIVATE, SITECUSTOMIZE, STEPS, template_file, template_folder
from autogpu.lease import locks
from autogpu.lease.mounts import mounts_of

LINK = Path("/usr/local/lib/autogpu")

# A copy of the hook: the sitecustomize.py of a base Python imports it by this name.
HOOK_OF_BASE_PYTHONS = "_autogpu_host.py"
_RECORD = "host.json"

# Lock a file that only root can open. Every user can open /usr/local/lib, and could hold a lock on it forever.
_LOCK = "run/autogpu-host-setup.lock"
_LEFT_BY_KILLED = r"\.{0}-\w{{8}}(\.old)?|\.{0}-.*\.removed|\.{0}\.\d+\.link"

# Modules that only autogpu's commands use. The hook folder serves scripts, and has no commands.
_LEFT_OUT = ("cli", "doctor", "host", "status", "sitecustomize_template", "install.py")

# Compile all files for -O, -OO and neither. Python never compares an "unchecked" compiled file with its source.
_COMPILE = """
import compileall, py_compile, sys
folder, shown = sys.argv[1:]
mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
sys.exit(not all(
    compileall.compile_dir(folder, ddir=shown, quiet=1, optimize=level, invalidation_mode=mode) for level in (0, 1, 2)
))
"""
_COMPILE_DEADLINE_S = 600.0

# On these file systems a server that hangs would stop every Python of the host.
_NETWORK_FILE_SYSTEMS = {"nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "afs", "9p"}


class HookFolder(Value):
    """The folder to which the link leads.

    Attributes:
        version: The version of autogpu; ``""`` if the folder can't be read.
        tags: Cache tags of the Pythons for which the folder has compiled files, such as ``"cpython-311"``.
        base_files: Paths of the sitecustomize.py files that host-setup wrote for base Pythons.
        problem: Why no script should load autogpu from the folder; ``None`` if the folder is as host-setup built it.
    """

    folder: Path
    version: str = ""
    tags: Sequence[str] = ()
    base_files: Sequence[str] = ()
    problem: HostProblem | None = None


def sources() -> dict[str, bytes]:
    """Return the contents of the folder's source files, keyed by their path relative to the folder.

    Raises:
        SetupStopped: This environment has no pynvml or no tomli to copy.
    """
    templates = template_folder()
    hook = template_file(templates, SITECUSTOMIZE).read_bytes()
    files = {SITECUSTOMIZE: hook, f"{PRIVATE}/{HOOK_OF_BASE_PYTHONS}": hook}
    files[f"{PRIVATE}/{STEPS}"] = template_file(templates, STEPS).read_bytes()
    files.update(_sources_of_package())
    files.update(_sources_of_vendored())
    return files


def _sources_of_package() -> Iterator[tuple[str, bytes]]:
    package = Path(autogpu.__file__).parent
    for path in sorted(package.rglob("*")):
        place = path.relative_to(package)
        if path.is_file() and place.parts[0] not in _LEFT_OUT and "__pycache__" not in place.parts:
            yield f"{PRIVATE}/autogpu/{place.as_posix()}", path.read_bytes()


def _sources_of_vendored() -> Iterator[tuple[str, bytes]]:
    try:
        nvml.load_pynvml()
    except nvml.UnusableBinding as error:
        raise SetupStopped(HostProblem(HostFault.UNUSABLE_PYNVML, detail=str(error))) from None
    for name in ("pynvml", "tomli"):
        found = find_spec(f"autogpu._vendor.{name}")
        if found is None or found.origin is None:
            raise SetupStopped(HostProblem(HostFault.NOT_INSTALLED, detail=name))
        file = Path(found.origin)
        is_package = file.name == "__init__.py"
        for path in sorted(file.parent.glob("*.py")) if is_package else [file]:
            place = path.relative_to(file.parents[1] if is_package else file.parent)
            yield f"{PRIVATE}/autogpu/_vendor/{place.as_posix()}", path.read_bytes()


def digest_of(files: Mapping[str, bytes], *further: str) -> str:
    digest = hashlib.sha256("\n".join(further).encode())
    for name in sorted(files):
        digest.update(f"\n{name}\n{len(files[name])}\n".encode())
        digest.update(files[name])
    return digest.hexdigest()


def place_of(link: Path, files: Mapping[str, bytes], pythons: Sequence[BasePython], base_files: Sequence[str]) -> Path:
    """Return the path of the folder for these contents, Pythons and base files. Each combination has its own path."""
    digest = digest_of(files, *sorted({python.tag for python in pythons}), *base_files)
    return link.with_name(f"{link.name}-{autogpu.__version__}-{digest[:8]}")


def examine(link: Path, owner_uid: int = 0) -> HookFolder | None:
    """Return the state of the folder to which the link leads; ``None`` if the link does not exist."""
    if not os.path.lexists(str(link)):
        return None
    folder = link.resolve()
    try:
        record = json.loads((folder / PRIVATE / _RECORD).read_text(encoding="utf-8"))
        found = HookFolder(folder, record["version"], tuple(record["tags"]), tuple(record["base_files"]))
        files = _files_in(folder)
    except (OSError, ValueError, KeyError) as error:
        return HookFolder(folder, problem=HostProblem(HostFault.FOLDER_UNREADABLE, str(folder), str(error)))
    changed = _changeable_by_others(folder, owner_uid)
    if changed:
        return replace(found, problem=HostProblem(HostFault.FOLDER_OPEN_TO_OTHERS, str(changed)))
    if digest_of(files) != record["digest"]:
        return replace(found, problem=HostProblem(HostFault.FOLDER_DIFFERS, str(folder)))
    return found


def _files_in(folder: Path) -> dict[str, bytes]:
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    del found[f"{PRIVATE}/{_RECORD}"]
    return found


def _changeable_by_others(folder: Path, owner_uid: int) -> Path | None:
    for path in (folder, *sorted(folder.rglob("*"))):
        status = path.lstat()
        if status.st_uid != owner_uid or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return path
    return None


@contextmanager
def changing(root: Path) -> Iterator[None]:
    """Lock out other runs of host-setup, and make new files readable for all users."""
    umask = os.umask(0o022)
    try:
        with locks.Descriptor(os.open, str(root / _LOCK), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600) as opened:
            locks.exclusive(opened.number)
            yield
    finally:
        os.umask(umask)


def build(
    link: Path,
    files: Mapping[str, bytes],
    pythons: Sequence[BasePython],
    base_files: Sequence[str],
    tell: Callable[[str], None],
) -> Path:
    """Build the folder of a version, and point the link to it. Return the folder.

    Args:
        tell: Called with the cache tag of each Python that compiles the files, such as ``"cpython-311"``.

    Raises:
        SetupStopped: The folder would be on a network file system, something other than a link has the link's path, or
            a Python can't compile the files.
    """
    link.parent.mkdir(parents=True, exist_ok=True)
    with locks.Descriptor(os.open, str(link.parent), os.O_RDONLY) as opened:
        system = mounts_of(opened.number).file_system
    if system in _NETWORK_FILE_SYSTEMS:
        raise SetupStopped(HostProblem(HostFault.ON_NETWORK, str(link.parent), system))
    if os.path.lexists(str(link)) and not link.is_symlink():
        raise SetupStopped(HostProblem(HostFault.NOT_A_LINK, str(link)))
    by_tag = {python.tag: python for python in pythons}
    folder = place_of(link, files, pythons, base_files)
    made = Path(tempfile.mkdtemp(prefix=f".{link.name}-", dir=str(link.parent)))
    try:
        for name, content in files.items():
            path = made / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        for tag, python in sorted(by_tag.items()):
            tell(tag)
            _compile(python, made, folder)
        record = {
            "version": autogpu.__version__,
            "tags": sorted(by_tag),
            "base_files": list(base_files),
            "digest": digest_of({**files, **_compiled(made)}),
        }
        (made / PRIVATE / _RECORD).write_text(json.dumps(record), encoding="utf-8")
        for path in (made, *made.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        _sync(made)
        if folder.exists():
            # The link does not lead to this folder, or the folder is broken. In both cases no script relies on it.
            folder.rename(made.with_name(f"{made.name}.old"))
        made.rename(folder)
    finally:
        shutil.rmtree(str(made), ignore_errors=True)
    _point(link, folder)
    return folder


def _compile(python: BasePython, folder: Path, shown: Path) -> None:
    command = [python.executable, *OPTIONS, "-c", _COMPILE, str(folder), str(shown)]
    environ = {"PATH": os.defpath, "LC_ALL": "C.UTF-8"}
    try:
        done = subprocess.run(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_COMPILE_DEADLINE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupStopped(HostProblem(HostFault.NOT_COMPILED, python.executable, str(error))) from error
    if done.returncode:
        lines = (done.stdout + done.stderr).decode(errors="replace").strip()
        raise SetupStopped(HostProblem(HostFault.NOT_COMPILED, python.executable, lines))


def _compiled(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.pyc")}


def _sync(folder: Path) -> None:
    """Flush the file system of a folder to disk.

    Otherwise a power failure could leave half a sitecustomize.py, which would break every start of Python.
    """
    libc = ctypes.CDLL(None)
    with locks.Descriptor(os.open, str(folder), os.O_RDONLY) as opened:
        if not hasattr(libc, "syncfs") or libc.syncfs(opened.number):
            os.sync()


def _point(link: Path, folder: Path) -> None:
    old = link.resolve() if link.is_symlink() else None
    new = link.with_name(f".{link.name}.{os.getpid()}.link")
    new.symlink_to(folder.name)
    if old is not None and old != folder:
        with suppress(OSError):
            os.utime(str(old))  # remove_old() uses this as the time of the replacement
    new.replace(link)


def versions(link: Path) -> list[Path]:
    """Return the folders of all versions, and the temporary files of killed runs."""
    found = []
    for path in sorted(link.parent.glob(f"*{link.name}*")) if link.parent.is_dir() else ():
        is_version = re.fullmatch(rf"{link.name}-[^/]+-[0-9a-f]{{8}}", path.name) and (path / PRIVATE).is_dir()
        if is_version or re.fullmatch(_LEFT_BY_KILLED.format(link.name), path.name):
            found.append(path)
    return found


def remove_old(link: Path, booted_s: float) -> list[Path]:
    """Remove the versions that were replaced before the last boot: no running Python can have started with them."""
    removed = []
    for path in versions(link):
        is_left = path.name.startswith(".")
        if path != link.resolve() and (is_left or path.stat().st_mtime < booted_s):
            _remove(path)
            removed.append(path)
    return removed


def all_of(link: Path) -> list[Path]:
    return [*([link] if link.is_symlink() else []), *versions(link)]


def remove_all(link: Path) -> list[Path]:
    removed = all_of(link)
    for path in removed:
        _remove(path)
    return removed


def _remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    else:
        # Rename the folder first, so that a killed run leaves no incomplete folder with the name of a version.
        hidden = path.with_name(f".{path.name}.{os.getpid()}.removed")
        path.rename(hidden)
        shutil.rmtree(str(hidden))


def booted_s() -> float:
    """Return the Unix time at which this host booted; ``-inf`` if it is unknown. Source: btime in proc(5)."""
    with suppress(OSError):
        for line in Path("/proc/stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "btime":
                return float(value)
    return float("-inf")
