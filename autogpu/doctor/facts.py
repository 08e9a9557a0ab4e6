"""What can be seen from here. Nothing is judged, and nothing is changed but for one try of the host's mutex."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Mapping

from autogpu import lease, policy
from autogpu.devices import probe
from autogpu.devices.model import Inventory
from autogpu.install import this_interpreter
from autogpu.install.proof import Start, fresh_start
from autogpu.install.source import pip_source
from autogpu.lease import Folder
from autogpu.policy import Resolved

# TensorFlow takes seconds to import, a minute from a cold network disk.
_DEADLINE_S = 180.0
_DRIVER_DEADLINE_S = 20.0

# What cuInit says and how many GPUs there are then: in a process of its own, which it may take along.
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

_TENSORFLOW = """
import importlib.util, json
found = None
if importlib.util.find_spec("tensorflow"):
    found = {}
    try:
        import tensorflow as tf
        found["version"] = tf.__version__
        found["has_cuda"] = bool(tf.test.is_built_with_cuda())
        found["has_rocm"] = bool(getattr(tf.test, "is_built_with_rocm", bool)())
        from autogpu.frameworks.tensorflow import put_seams
        seams = put_seams(object())
        found["missing"], found["essential"] = dict(seams.missing), seams.essential
        found["gpus"] = len(tf.config.experimental.list_physical_devices("GPU"))
    except Exception as error:
        found["error"] = "%s: %s" % (type(error).__name__, error)
print()
print(json.dumps(found))
"""


@dataclass(frozen=True)
class TensorFlow:
    """The TensorFlow of this environment.

    Attributes:
        error: Why it can't be imported or asked; empty if it can.
        gpus: How many it lists; ``None`` where it could not be asked.
        missing: What autogpu hooks into and this version lacks, with what is not in force.
    """

    version: str = "?"
    error: str = ""
    has_cuda: bool = False
    has_rocm: bool = False
    gpus: int | None = None
    is_known: bool = False
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Cuda:
    """What ``libcuda`` says to a fresh process that sees every GPU.

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
class Facts:
    """All of it.

    Attributes:
        pythons: By name on ``PATH`` (``python``, ``python3``), what they start, where that is another environment.
        source: What pip installs this autogpu from.
        folder_error: Why this user's jobs can't coordinate, and the remedy.
        tensorflow: ``None`` where none is installed.
    """

    environ: Mapping[str, str]
    executable: str
    source: str
    start: Start
    pythons: Mapping[str, str]
    inventory: Inventory
    cuda: Cuda
    tensorflow: TensorFlow | None
    folder: Folder | None
    folder_error: tuple[str, str] | None
    is_in_container: bool
    resolved: Resolved


def gather(environ: Mapping[str, str], progress: Callable[[str], None] = lambda doing: None) -> Facts:
    """Look at everything; some seconds, most of them TensorFlow's import.

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
    cuda = _cuda(python.executable, environ)
    progress("importing TensorFlow")
    tensorflow = _tensorflow(python.executable, environ)
    folder, folder_error = _folder(environ)
    return Facts(
        environ=dict(environ),
        executable=python.executable,
        source=pip_source(),
        start=start,
        pythons=_other_pythons(environ),
        inventory=inventory,
        cuda=cuda,
        tensorflow=tensorflow,
        folder=folder,
        folder_error=folder_error,
        is_in_container=_is_in_container(environ),
        resolved=policy.resolve(environ, script=None, working_directory=Path.cwd()),
    )


def _cuda(executable: str, environ: Mapping[str, str]) -> Cuda:
    all_gpus = {name: value for name, value in environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    told, error = _ask(executable, _CUDA, all_gpus, _DRIVER_DEADLINE_S)
    return Cuda(error=error) if error else Cuda(**told)


def _tensorflow(executable: str, environ: Mapping[str, str]) -> TensorFlow | None:
    # Off: what TensorFlow finds by itself is asked, and no line of ours is printed.
    quiet = {**environ, "AUTOGPU": "0", "TF_CPP_MIN_LOG_LEVEL": "3"}
    told, error = _ask(executable, _TENSORFLOW, quiet, _DEADLINE_S)
    if error:
        return TensorFlow(error=error)
    if told is None:
        return None
    return TensorFlow(
        version=told.get("version", "?"),
        error=told.get("error", ""),
        has_cuda=told.get("has_cuda", False),
        has_rocm=told.get("has_rocm", False),
        gpus=told.get("gpus"),
        is_known=told.get("essential", False),
        missing=told.get("missing", {}),
    )


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
        return None, f"it has not answered for {deadline_s:.0f} s"
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


def _folder(environ: Mapping[str, str]) -> tuple[Folder | None, tuple[str, str] | None]:
    try:
        folder = lease.find_folder(environ)
        lease.claim(folder, lambda *_: None, script="autogpu")
    except lease.LeaseUnavailable as error:
        return None, (error.what, error.remedy)
    return folder, None


def _is_in_container(environ: Mapping[str, str]) -> bool:
    marks = ("/.dockerenv", "/run/.containerenv")
    return any(Path(mark).exists() for mark in marks) or "KUBERNETES_SERVICE_HOST" in environ
