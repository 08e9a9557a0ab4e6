"""Look at this machine. Nothing is changed, but the host's mutex is tried once, and a file in the lease folder."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Any, Mapping

from autogpu import engines, frameworks, lease, policy
from autogpu.devices import cuda, probe
from autogpu.doctor.model import Cuda, Facts
from autogpu.frameworks.diagnosis import QUESTIONS
from autogpu.install import HOOK, STEPS, ask, fresh_start, pip_source, template_folder
from autogpu.lease import Folder
from autogpu.lease.leases import LockedFile
from autogpu.reporting.text import sudo
from autogpu.selection.grants import settled
from autogpu.variables import CUDA_VISIBLE_DEVICES, SWITCH

# A framework takes seconds to import, a minute from a cold network disk.
_DEADLINE_S = 180.0
_PYTHON_DEADLINE_S = 20.0

_FRAMEWORK = """
import importlib.util, json
found = None
if importlib.util.find_spec("{module}"):
    found = {{}}
    try:
        import {module}
        found["version"] = {module}.__version__
        from autogpu.frameworks.{module} import find_hooks
        hooks = find_hooks()
        found["missing"], found["obstacle"] = dict(hooks.missing), hooks.obstacle
{questions}
    except Exception as error:
        found["error"] = "%s: %s" % (type(error).__name__, error)
print()
print(json.dumps(found))
"""

_PREFIX = "import json, os, sys; print(json.dumps(os.path.realpath(sys.prefix)))"


def gather(environ: Mapping[str, str]) -> Facts:
    """Look at everything; takes some seconds, most of them to import the frameworks."""
    reading = probe.start(environ)
    start = fresh_start(sys.executable, environ)
    inventory = probe.finish(reading)
    all_gpus = {name: value for name, value in environ.items() if name != CUDA_VISIBLE_DEVICES}
    folder, folder_error = try_folder(environ)
    return Facts(
        environ=dict(environ),
        executable=sys.executable,
        source=pip_source(),
        start=start,
        pythons=_other_pythons(environ),
        inventory=inventory,
        cuda=Cuda(**_answer(cuda.START, all_gpus, cuda.START_DEADLINE_S)),
        frameworks={module: _ask_framework(module, environ) for module in frameworks.FRAMEWORKS},
        folder=folder,
        folder_error=folder_error,
        is_in_container=_is_in_container(environ),
        resolved=policy.resolve(environ, script=None, working_directory=policy.working_directory()),
        grant=settled(engines.granted_here(environ), inventory),
        hook_is_current=start.hook is None or _is_current(start.hook),
        has_pip=importlib.util.find_spec("pip") is not None,
        sudo=sudo(),
    )


def _answer(program: str, environ: Mapping[str, str], deadline_s: float) -> Any:
    answer = ask(sys.executable, program, environ, deadline_s)
    return {"error": answer.error} if answer.error else answer.value


def _ask_framework(module: str, environ: Mapping[str, str]) -> Any:
    questions = textwrap.indent(QUESTIONS[module].strip(), " " * 8)
    # Off: what the framework finds by itself is asked, and no line of ours is printed.
    return _answer(_FRAMEWORK.format(module=module, questions=questions), {**environ, SWITCH: "0"}, _DEADLINE_S)


def _is_current(hook: Path) -> bool:
    templates = template_folder()
    try:
        names = (HOOK, STEPS)
        return all((hook.parent / name).read_bytes() == (templates / name).read_bytes() for name in names)
    except OSError:
        return False


def _other_pythons(environ: Mapping[str, str]) -> dict[str, str]:
    """Find where a shell's ``python`` is another than the one that autogpu is installed in."""
    found = {}
    for name in ("python", "python3"):
        path = shutil.which(name, path=environ.get("PATH"))
        if path and ask(path, _PREFIX, environ, _PYTHON_DEADLINE_S).value not in (None, os.path.realpath(sys.prefix)):
            found[name] = path
    return found


def try_folder(environ: Mapping[str, str]) -> tuple[Folder | None, lease.LeaseUnavailable | None]:
    """The folder of this user's jobs, and what keeps them from claiming there; makes none."""
    folder = None
    try:
        folder = lease.find_folder(environ, make=False)
        with folder.locked() as (descriptor, problem):
            trial = LockedFile(folder)
            try:
                # No lease has such a name, so nobody takes it for one.
                trial.put(descriptor, f".doctor.{os.getpid()}", b"")
            finally:
                trial.release()
        return folder, problem
    except lease.NoFolderYet:
        return None, None
    except lease.LeaseUnavailable as error:
        return folder, error


def _is_in_container(environ: Mapping[str, str]) -> bool:
    marks = ("/.dockerenv", "/run/.containerenv")
    return any(Path(mark).exists() for mark in marks) or "KUBERNETES_SERVICE_HOST" in environ
