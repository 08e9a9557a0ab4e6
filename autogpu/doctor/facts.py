"""Look at this machine. Nothing is changed, but the host's mutex is tried once."""

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
from autogpu.devices.nvml import NO_ANSWER
from autogpu.errors import InstallError
from autogpu.install import files, this_interpreter
from autogpu.install.proof import TIMED_OUT, FreshStart, fresh_start
from autogpu.install.source import pip_source
from autogpu.lease import Folder
from autogpu.policy import Resolved
from autogpu.selection.grants import NO_ENGINE, Grant, settled
from autogpu.selection.visible_devices import named_uuids
from autogpu.variables import CUDA_DEVICE_ORDER, CUDA_VISIBLE_DEVICES, SWITCH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.devices.model import Reading

# A framework takes seconds to import, a minute from a cold network disk.
_DEADLINE_S = 180.0
_DRIVER_DEADLINE_S = 20.0

# How a machine that is only busy is told from one that is broken: it answers when it is given more time.
_PATIENT_DEADLINE_S = 30.0

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

# Where a Python is installed, and whether another tool than pip manages its packages: https://peps.python.org/pep-0668
_PREFIX = """
import json, os, sys
mark = os.path.join(os.path.dirname(os.__file__), "EXTERNALLY-MANAGED")
print(json.dumps([os.path.realpath(sys.prefix), os.path.exists(mark)]))
"""


@dataclass(frozen=True)
class Cuda:
    """The answers of ``libcuda`` to a fresh process that sees every GPU, or why there are none.

    ``code`` is that of ``cuInit``; ``version`` the newest CUDA that the driver speaks, as 12040 for 12.4.
    """

    error: str = ""
    code: int = 0
    count: int = 0
    version: int = 0


@dataclass(frozen=True)
class Facts:
    """All of it.

    Attributes:
        pythons: By name on ``PATH`` (``python``, ``python3``), what they start, where that is another environment.
        managed: Of these, those whose packages another tool than pip manages (PEP 668).
        source: What pip installs this autogpu from.
        frameworks: By module, its own answers, or an ``error``; ``None`` where it is not installed.
        was_slow: The driver answered only when it was given more time.
        folder_error: Why this user's jobs can't coordinate, and the remedy.
        hook_is_current: The hook that a fresh Python loads is the one of this package.
    """

    environ: Mapping[str, str]
    executable: str
    source: str
    start: FreshStart
    pythons: Mapping[str, str]
    inventory: Inventory
    cuda: Cuda
    frameworks: Mapping[str, Any]
    folder: Folder | None
    folder_error: tuple[str, str] | None
    is_in_container: bool
    resolved: Resolved
    grant: Grant = NO_ENGINE
    hook_is_current: bool = True
    managed: frozenset[str] = frozenset()
    was_slow: bool = False

    @property
    def hides_all_gpus(self) -> bool:
        """``CUDA_VISIBLE_DEVICES`` hides every GPU from this shell."""
        order = self.environ.get(CUDA_DEVICE_ORDER)
        value = self.environ.get(CUDA_VISIBLE_DEVICES)
        return value is not None and named_uuids(value, self.inventory, order) == ()


def gather(environ: Mapping[str, str], progress: Callable[[str], None] = lambda doing: None) -> Facts:
    """Look at everything, telling ``progress`` at what; takes some seconds, most of them to import the frameworks."""
    progress("reading the driver")
    reading = probe.start(environ)
    python = this_interpreter()
    progress("starting a fresh Python")
    start = fresh_start(python.executable, environ)
    inventory, was_slow = patient(probe.finish(reading), lambda: probe.start_in_process(environ, Inventory()))
    progress("asking CUDA")
    cuda = _read_cuda(python.executable, environ)
    answers = {}
    for module in frameworks.FRAMEWORKS:
        progress(f"importing {module}")
        answers[module] = _framework(module, python.executable, environ)
    folder, folder_error = _find_folder(environ)
    pythons, managed = _other_pythons(environ)
    return Facts(
        environ=dict(environ),
        executable=python.executable,
        source=pip_source(),
        start=start,
        pythons=pythons,
        managed=managed,
        was_slow=was_slow,
        inventory=inventory,
        cuda=cuda,
        frameworks=answers,
        folder=folder,
        folder_error=folder_error,
        is_in_container=_is_in_container(environ),
        resolved=policy.resolve(environ, script=None, working_directory=policy.working_directory()),
        grant=settled(engines.granted_here(environ), len(inventory.devices)),
        hook_is_current=start.hook is None or _is_current(start.hook),
    )


def patient(first: Inventory, read_again: Callable[[], Reading]) -> tuple[Inventory, bool]:
    """Give a driver that did not answer in time more time; returns what it says, and that it took it."""
    silent = [each for each in first.unreadable if each.reason == NO_ANSWER]
    if not silent and TIMED_OUT not in (first.failure or ""):
        return first, False
    again = read_again().result(_PATIENT_DEADLINE_S)
    if again is None or again.failure or any(each.reason == NO_ANSWER for each in again.unreadable):
        return first, False
    return again, True


def _is_current(hook: Path) -> bool:
    names = (files.HOOK, files.STEPS)
    try:
        templates = files.template_folder()
        return all((hook.parent / name).read_bytes() == (templates / name).read_bytes() for name in names)
    except FileNotFoundError:
        return False
    except (OSError, InstallError):
        return True  # there is nothing to compare with


def _read_cuda(executable: str, environ: Mapping[str, str]) -> Cuda:
    all_gpus = {name: value for name, value in environ.items() if name != CUDA_VISIBLE_DEVICES}
    told, error = _ask(executable, _CUDA, all_gpus, _DRIVER_DEADLINE_S)
    return Cuda(error=error) if error else Cuda(**told)


def _framework(module: str, executable: str, environ: Mapping[str, str]) -> Any:
    diagnosis = frameworks.load_diagnosis(module)
    # Off: what the framework finds by itself is asked, and no line of ours is printed.
    quiet = {**environ, SWITCH: "0", **diagnosis.ENVIRONMENT}
    answer, error = _ask(executable, diagnosis.PROGRAM, quiet, _DEADLINE_S)
    return {"error": error} if error else answer


def _ask(
    executable: str, program: str, environ: Mapping[str, str], deadline_s: float, *options: str
) -> tuple[Any, str]:
    """Read what ``program`` prints as JSON on its last line; returns that, and why there is none."""
    try:
        done = subprocess.run(
            [executable, *options, "-c", program],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=dict(environ),
            timeout=deadline_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"{TIMED_OUT} after {deadline_s:.0f} s"
    except OSError as error:
        return None, f"it does not start: {error.strerror}"
    try:
        return json.loads(done.stdout.decode(errors="replace").strip().splitlines()[-1]), ""
    except (ValueError, IndexError):
        if done.returncode < 0:
            return None, f"it ended by signal {-done.returncode}"
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return None, last[0] if last else f"it ended with status {done.returncode}"


def _other_pythons(environ: Mapping[str, str]) -> tuple[dict[str, str], frozenset[str]]:
    """Find where a shell's ``python`` is another than the one that autogpu is installed in, and which are managed."""
    found, managed = {}, set()
    for name in ("python", "python3"):
        path = shutil.which(name, path=environ.get("PATH"))
        prefix, is_managed = _prefix(path) if path else ("", False)
        if path and prefix not in ("", os.path.realpath(sys.prefix)):
            found[name] = path
            if is_managed:
                managed.add(path)
    return found, frozenset(managed)


def _prefix(executable: str) -> tuple[str, bool]:
    told, _ = _ask(executable, _PREFIX, {}, _DRIVER_DEADLINE_S, "-I", "-S")
    # Without site a virtual environment is not seen: what lies beside the executable tells.
    config = Path(executable).parent.parent / "pyvenv.cfg"
    if config.exists():
        return os.path.realpath(config.parent), False
    return tuple(told) if told else ("", False)


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
