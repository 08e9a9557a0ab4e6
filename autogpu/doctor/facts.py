"""What can be seen on this machine. Nothing is changed, but the host's mutex is tried once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Mapping

from autogpu import engines, frameworks, lease, policy
from autogpu.devices import probe
from autogpu.devices.model import Inventory
from autogpu.errors import InstallError
from autogpu.install import files, this_interpreter
from autogpu.install.proof import FreshStart, fresh_start
from autogpu.install.source import pip_source
from autogpu.lease import Folder
from autogpu.policy import Resolved
from autogpu.selection.grants import NO_ENGINE, Grant, settled
from autogpu.selection.visible_devices import named_uuids
from autogpu.variables import CUDA_DEVICE_ORDER, CUDA_VISIBLE_DEVICES, SWITCH

# A framework takes seconds to import, a minute from a cold network disk.
_DEADLINE_S = 180.0
_DRIVER_DEADLINE_S = 20.0

# What cuInit returns and how many GPUs there are then, in a process of its own: the driver may crash it.
_CUDA = """
import ctypes, json
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    found = {"error": str(error)}
else:
    count, version = ctypes.c_int(), ctypes.c_int()
    code = cuda.cuInit(0)
    cuda.cuDriverGetVersion(ctypes.byref(version))
    if not code:
        cuda.cuDeviceGetCount(ctypes.byref(count))
    found = {"code": code, "count": count.value, "version": version.value}
print()
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Cuda:
    """What ``libcuda`` tells a fresh process that sees every GPU.

    Attributes:
        error: Why the library can't be loaded, or that it did not answer; empty if it was asked.
        code: Of ``cuInit``; 0 is success.
        version: The newest CUDA that the driver speaks, as 12040 for 12.4.
    """

    error: str = ""
    code: int = 0
    count: int = 0
    version: int = 0


@dataclass(frozen=True)
class FrameworkAnswer:
    """What a framework of this environment says of itself; its package judges it.

    Attributes:
        module: Its top-level module.
        answer: What its program printed; ``None`` where the framework is not installed.
        error: Why that printed nothing; empty if it did.
    """

    module: str
    answer: Any
    error: str = ""

    @property
    def is_installed(self) -> bool:
        """Whether it is there, be it broken."""
        return self.answer is not None or bool(self.error)


@dataclass(frozen=True)
class Facts:
    """All of it.

    Attributes:
        pythons: By name on ``PATH`` (``python``, ``python3``), what they start, where that is another environment.
        source: What pip installs this autogpu from.
        folder_error: Why this user's jobs can't coordinate, and the remedy.
        hook_is_current: Whether the hook that a fresh Python loads is the one of this package.
    """

    environ: Mapping[str, str]
    executable: str
    source: str
    start: FreshStart
    pythons: Mapping[str, str]
    inventory: Inventory
    cuda: Cuda
    frameworks: tuple[FrameworkAnswer, ...]
    folder: Folder | None
    folder_error: tuple[str, str] | None
    is_in_container: bool
    resolved: Resolved
    grant: Grant = NO_ENGINE
    hook_is_current: bool = True

    @property
    def hides_all_gpus(self) -> bool:
        """Whether ``CUDA_VISIBLE_DEVICES`` hides every GPU from this shell."""
        order = self.environ.get(CUDA_DEVICE_ORDER)
        value = self.environ.get(CUDA_VISIBLE_DEVICES)
        return value is not None and named_uuids(value, self.inventory, order) == ()


def gather(environ: Mapping[str, str], progress: Callable[[str], None] = lambda doing: None) -> Facts:
    """Look at everything; takes some seconds, most of them for the import of a framework.

    Args:
        environ: As a script started here would have it.
        progress: Is told what is being looked at.
    """
    progress("reading the driver")
    reading = probe.start(environ)
    python = this_interpreter()
    progress("starting a fresh Python")
    start = fresh_start(python.executable, environ)
    inventory = probe.finish(reading)
    progress("asking CUDA")
    cuda = _read_cuda(python.executable, environ)
    answers = []
    for module in frameworks.FRAMEWORKS:
        progress(f"importing {module}")
        answers.append(_framework(module, python.executable, environ))
    folder, folder_error = _find_folder(environ)
    return Facts(
        environ=dict(environ),
        executable=python.executable,
        source=pip_source(),
        start=start,
        pythons=_other_pythons(environ),
        inventory=inventory,
        cuda=cuda,
        frameworks=tuple(answers),
        folder=folder,
        folder_error=folder_error,
        is_in_container=_is_in_container(environ),
        resolved=policy.resolve(environ, script=None, working_directory=policy.working_directory()),
        grant=settled(engines.granted_here(environ), len(inventory.devices)),
        hook_is_current=start.hook is None or _is_current(start.hook),
    )


def _is_current(hook: Path) -> bool:
    """Whether an installed hook is the one that this package brings."""
    try:
        return hook.read_bytes() == (files.template_folder() / files.HOOK).read_bytes()
    except (OSError, InstallError):
        return True  # there is nothing to compare with


def _read_cuda(executable: str, environ: Mapping[str, str]) -> Cuda:
    all_gpus = {name: value for name, value in environ.items() if name != CUDA_VISIBLE_DEVICES}
    told, error = _ask(executable, _CUDA, all_gpus, _DRIVER_DEADLINE_S)
    return Cuda(error=error) if error else Cuda(**told)


def _framework(module: str, executable: str, environ: Mapping[str, str]) -> FrameworkAnswer:
    diagnosis = frameworks.load_diagnosis(module)
    # Off: what the framework finds by itself is asked, and no line of ours is printed.
    quiet = {**environ, SWITCH: "0", **diagnosis.ENVIRONMENT}
    answer, error = _ask(executable, diagnosis.PROGRAM, quiet, _DEADLINE_S)
    return FrameworkAnswer(module, answer, error)


def _ask(executable: str, program: str, environ: Mapping[str, str], deadline_s: float) -> tuple[Any, str]:
    """What ``program`` prints as JSON on its last line, and why there is none."""
    try:
        done = subprocess.run(
            [executable, "-c", program],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=dict(environ),
            timeout=deadline_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"timed out after {deadline_s:.0f} s"
    try:
        return json.loads(done.stdout.decode(errors="replace").strip().splitlines()[-1]), ""
    except (ValueError, IndexError):
        if done.returncode < 0:
            return None, f"it ended by signal {-done.returncode}"
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return None, last[0] if last else f"it ended with status {done.returncode}"


def _other_pythons(environ: Mapping[str, str]) -> dict[str, str]:
    """A shell's ``python`` may be another than the one that autogpu is installed in."""
    found = {}
    for name in ("python", "python3"):
        path = shutil.which(name, path=environ.get("PATH"))
        if path and _prefix(path) not in (None, os.path.realpath(sys.prefix)):
            found[name] = path
    return found


def _prefix(executable: str) -> str | None:
    try:
        done = subprocess.run(
            [executable, "-I", "-S", "-c", "import os, sys; print(os.path.realpath(sys.prefix))"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    # Without site a virtual environment is not seen: what lies beside the executable tells.
    config = Path(executable).parent.parent / "pyvenv.cfg"
    return os.path.realpath(config.parent) if config.exists() else done.stdout.strip() or None


def _find_folder(environ: Mapping[str, str]) -> tuple[Folder | None, tuple[str, str] | None]:
    problems: list[lease.LeaseUnavailable] = []
    folder = None
    try:
        folder = lease.find_folder(environ, make=False)
        lease.acquire_lease(folder, lambda *_: None, script="autogpu", on_problem=problems.append)
    except lease.NoFolderYet:
        pass
    except lease.LeaseUnavailable as error:
        problems.append(error)
    return folder, (problems[0].what, problems[0].remedy) if problems else None


def _is_in_container(environ: Mapping[str, str]) -> bool:
    marks = ("/.dockerenv", "/run/.containerenv")
    return any(Path(mark).exists() for mark in marks) or "KUBERNETES_SERVICE_HOST" in environ
