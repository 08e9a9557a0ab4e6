"""The checks of ``autogpu doctor``, and the function that gathers the facts for them.

To gather the facts, :func:`gather` locks the lease folder once and writes a temporary file into it. If there is no
lease folder, it makes a temporary folder in the parent folder. It changes nothing else. Each check is a pure function
of the facts. ``autogpu.reporting.doctor`` has the sentences about the findings.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Mapping

from autogpu import frameworks, lease
from autogpu.devices import probe
from autogpu.devices.cuda import START, START_DEADLINE_S
from autogpu.devices.enumeration import cards, takeable
from autogpu.devices.model import FailureCause
from autogpu.doctor.frameworks import QUESTIONS, check_framework
from autogpu.doctor.model import (
    NEWEST_TESTED,
    OLDEST,
    Cause,
    Facts,
    Finding,
    failed,
    failed_or_slow,
    not_applicable,
    passed,
    warning,
)
from autogpu.engines.facts import granted_here
from autogpu.engines.model import settled
from autogpu.host import hook_folder
from autogpu.install import STEPS, fresh_start, is_hosts, run_folder, template_file, template_folder
from autogpu.lease import Folder
from autogpu.lease.leases import LockedFile
from autogpu.policy import SYSTEM_FILE, resolve, working_directory
from autogpu.policy.model import LayerName
from autogpu.selection.ranking import unmatched_lists
from autogpu.selection.visible_devices import original_environ
from autogpu.snippet import Answer, run_snippet
from autogpu.users import is_person, sudo, user_name
from autogpu.variables import CUDA_VISIBLE_DEVICES, SWITCH

# A framework takes seconds to import, a minute from a cold network disk.
_IMPORT_DEADLINE_S = 180.0
_PYTHON_DEADLINE_S = 20.0

_FRAMEWORK_QUESTION = """
import importlib.util, json, sys
found = None
if importlib.util.find_spec("{module}"):
    found = {{}}
    try:
        import {module}
        found["version"] = {module}.__version__
        if "autogpu" not in sys.modules:
            spec = importlib.util.spec_from_file_location("autogpu", "{package}/__init__.py")
            sys.modules["autogpu"] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules["autogpu"])
        from autogpu.frameworks import load
        hooks = load("{module}").find_hooks()
        found["missing"], found["obstacle"] = dict(hooks.missing), hooks.obstacle
{questions}
    except Exception as error:
        found["error"] = "%s: %s" % (type(error).__name__, error)
print()
print(json.dumps(found))
"""

_PYTHON_QUESTION = """
import importlib.util, json, sys
has_pip = importlib.util.find_spec("pip") is not None
print(json.dumps((sys.version_info[:2], sys.implementation.cache_tag, has_pip)))
"""
_PREFIX_QUESTION = "import json, os, sys; print(json.dumps(os.path.realpath(sys.prefix)))"


def gather(environ: Mapping[str, str], executable: str = sys.executable) -> Facts:
    """Gather the facts. This takes some seconds, most of them for importing the frameworks.

    Args:
        executable: The Python to examine. Its environment may have no autogpu.
    """
    is_own_python = executable == sys.executable
    reading = probe.start(environ)
    start = fresh_start(executable, environ)
    answer = run_snippet(executable, _PYTHON_QUESTION, environ, _PYTHON_DEADLINE_S).value
    version, tag, has_pip = answer or (sys.version_info[:2], "", True)
    inventory = probe.finish(reading)
    all_gpus = {name: value for name, value in environ.items() if name != CUDA_VISIBLE_DEVICES}
    folder, lease_problem = try_folder(environ)
    return Facts(
        environ=original_environ(environ),
        executable=executable,
        start=start,
        pythons=_other_pythons(environ) if is_own_python else {},
        inventory=inventory,
        cuda=run_snippet(sys.executable, START, all_gpus, START_DEADLINE_S),
        frameworks={module: _ask_framework(executable, module, environ) for module in frameworks.FRAMEWORKS},
        folder=folder,
        lease_problem=lease_problem,
        is_folder_on_fuse=folder is not None and folder.is_on_fuse(),
        unreadable_files=unreadable_files(folder),
        is_in_container=_is_in_container(environ),
        resolved=resolve(environ, script=None, working_directory=working_directory()),
        grant=settled(granted_here(environ), inventory),
        system_policy_owner=owner_to_ask(SYSTEM_FILE),
        hook_is_current=start.hook is None or _is_current(start.hook),
        has_pip=has_pip,
        version=tuple(version),
        tag=tag,
        is_own_python=is_own_python,
        has_hosts_hook=start.hook is not None and is_hosts(start.hook),
        hosts_folder=hook_folder.examine(hook_folder.LINK),
        user_is_person=is_person(os.getuid()),
        sudo=sudo(),
    )


def _ask_framework(executable: str, module: str, environ: Mapping[str, str]) -> Answer:
    questions = textwrap.indent(QUESTIONS[module].strip(), " " * 8)
    program = _FRAMEWORK_QUESTION.format(module=module, questions=questions, package=str(Path(__file__).parents[1]))
    # Switch autogpu off: it must not change the GPUs that the framework finds, nor print lines of its own.
    return run_snippet(executable, program, {**environ, SWITCH: "0"}, _IMPORT_DEADLINE_S)


def _is_current(hook: Path) -> bool:
    if hook.parent == run_folder():
        return True
    templates = template_folder()
    try:
        return all(
            (hook.parent / name).read_bytes() == template_file(templates, name).read_bytes()
            for name in (hook.name, STEPS)
        )
    except OSError:
        return False


def _other_pythons(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the paths of ``python`` and ``python3`` on PATH that belong to another environment, keyed by name."""
    found = {}
    for name in ("python", "python3"):
        path = shutil.which(name, path=environ.get("PATH"))
        prefix = path and run_snippet(path, _PREFIX_QUESTION, environ, _PYTHON_DEADLINE_S).value
        if path and prefix not in (None, os.path.realpath(sys.prefix)):
            found[name] = path
    return found


def try_folder(environ: Mapping[str, str]) -> tuple[Folder | None, lease.LeaseProblem | None]:
    """Return this user's lease folder and the problem that prevents claims; ``None`` for each that does not exist."""
    folder = None
    try:
        folder = lease.find_folder(environ, make=False)
        with folder.locked() as (descriptor, problem):
            trial = LockedFile(folder)
            try:
                # Leases have other names, so no job reads this file as a lease.
                trial.put(descriptor, f".doctor.{os.getpid()}", b"trial\n")
            finally:
                trial.release()
        return folder, problem
    except lease.NoFolderYet as error:
        return None, _obstacle_to_making(Path(error.problem.path))
    except lease.LeaseUnavailable as error:
        return folder, error.problem


def _obstacle_to_making(folder: Path) -> lease.LeaseProblem | None:
    try:
        with TemporaryDirectory(prefix=".doctor.", dir=str(folder.parent)):
            return None
    except OSError as error:
        return lease.LeaseProblem(lease.Fault.NOT_REACHED, str(folder), str(error.strerror), error.errno)


def unreadable_files(folder: Folder | None) -> tuple[lease.UnreadableFile, ...]:
    try:
        return lease.snapshot(folder, is_partial=True).unreadable if folder else ()
    except lease.LeaseUnavailable:  # try_folder reports it
        return ()


def owner_to_ask(file: Path) -> str:
    """Return the name of the file's owner if this user can't write the file; else ``""``."""
    try:
        return "" if os.access(str(file), os.W_OK) else user_name(file.stat().st_uid)
    except OSError:
        return ""


def _is_in_container(environ: Mapping[str, str]) -> bool:
    marks = ("/.dockerenv", "/run/.containerenv")
    return any(Path(mark).exists() for mark in marks) or "KUBERNETES_SERVICE_HOST" in environ


def run_checks(facts: Facts) -> dict[str, Finding]:
    """Return the findings, keyed by check. The findings about installed frameworks come last."""
    findings = {name: check(facts) for name, check in CHECKS.items()}
    installed = [module for module, answer in facts.frameworks.items() if answer.value or answer.error]
    for module in installed:
        findings.update(check_framework(module, facts))
    if not installed:
        findings["frameworks"] = _check_no_framework(facts)
    return findings


def _check_no_framework(facts: Facts) -> Finding:
    # The host's hook serves the Pythons of users, so the environment of autogpu itself needs no framework.
    if facts.is_own_python and facts.hosts_folder:
        return not_applicable(Cause.NO_FRAMEWORK_BESIDE_HOST_HOOK)
    return failed(Cause.FRAMEWORK_MISSING)


def check_python(facts: Facts) -> Finding:
    if facts.version < OLDEST:
        return failed(Cause.PYTHON_TOO_OLD)
    if facts.version > NEWEST_TESTED:
        return warning(Cause.PYTHON_UNTESTED)
    return passed(Cause.PYTHON_TESTED)


def check_hook(facts: Facts) -> Finding:
    if facts.version < OLDEST:
        return not_applicable(Cause.HOOK_NEEDS_NEWER_PYTHON)
    if facts.start.hook is None:
        return _check_missing_hook(facts)
    if facts.has_hosts_hook:
        return _check_hosts_hook(facts)
    if not facts.hook_is_current:
        return failed(Cause.HOOK_OF_OTHER_VERSION)
    return passed(Cause.HOOK_LOADED)


def _check_missing_hook(facts: Facts) -> Finding:
    if facts.start.complaint:
        return failed_or_slow(Cause.FRESH_PYTHON_FAILS, is_slow=facts.start.timed_out)
    if not facts.hosts_folder:
        return failed(Cause.HOOK_MISSING)
    if not facts.user_is_person:
        return warning(Cause.HOST_HOOK_SKIPS_USER)
    return failed(Cause.HOST_HOOK_HIDDEN if facts.start.sitecustomize else Cause.HOST_HOOK_NOT_ON_PATH)


def _check_hosts_hook(facts: Facts) -> Finding:
    folder = facts.hosts_folder
    if folder is None or folder.problem:
        return failed(Cause.HOST_HOOK_UNUSABLE)
    if facts.tag not in folder.tags:
        return warning(Cause.HOST_HOOK_NOT_COMPILED)
    return passed(Cause.HOST_HOOK_LOADED)


def check_environment(facts: Facts) -> Finding:
    if not facts.is_own_python:
        return not_applicable(Cause.ENVIRONMENT_NOT_CHECKED)
    if not facts.pythons:
        return passed(Cause.ENVIRONMENT_FIRST_ON_PATH)
    # The host's hook also loads autogpu in that Python.
    if facts.hosts_folder:
        return warning(Cause.OTHER_ENVIRONMENT_WITH_HOST_HOOK)
    return failed(Cause.OTHER_ENVIRONMENT_ON_PATH)


def check_driver(facts: Facts) -> Finding:
    inventory = facts.inventory
    if inventory.failure_cause is FailureCause.PYNVML:
        return failed(Cause.PYNVML_UNUSABLE)
    if inventory.has_no_driver:
        return failed(Cause.NVML_MISSING) if facts.cuda_count else not_applicable(Cause.DRIVER_MISSING)
    if inventory.failure:
        return failed_or_slow(Cause.DRIVER_FAILS, is_slow=inventory.may_be_busy)
    if inventory.unreadable:
        return failed_or_slow(Cause.GPUS_UNREADABLE, is_slow=inventory.may_be_busy)
    return passed(Cause.DRIVER_WORKS)


def check_health(facts: Facts) -> Finding:
    devices = facts.inventory.devices
    if not cards(devices):
        return not_applicable(Cause.NO_GPU_TO_EXAMINE)
    if not all(device.is_healthy for device in cards(devices)):
        return failed(Cause.GPUS_FAULTY)
    if any(device.mig_enabled for device in takeable(devices)):
        return failed(Cause.GPUS_WITHOUT_INSTANCE)
    return passed(Cause.GPUS_HEALTHY)


def check_cuda(facts: Facts) -> Finding:
    inventory = facts.inventory
    if inventory.has_no_driver:
        return not_applicable(Cause.CUDA_NEEDS_DRIVER)
    if not inventory.devices and (facts.grant.is_none or inventory.denied):
        return not_applicable(Cause.CUDA_HAS_NO_GPU)
    if facts.cuda_count is None:
        return failed_or_slow(Cause.CUDA_DOES_NOT_START, is_slow=facts.cuda.timed_out)
    if facts.nvml_count not in (0, facts.cuda_count) and not any(device.mig_enabled for device in inventory.devices):
        return failed(Cause.CUDA_DIFFERS_FROM_NVML)
    return passed(Cause.CUDA_WORKS)


def check_visible(facts: Facts) -> Finding:
    if facts.grant.is_none:
        return not_applicable(Cause.GPUS_NOT_GRANTED)
    if facts.inventory.has_no_driver or facts.visible.value is None:
        return not_applicable(Cause.GPUS_NOT_RESTRICTED)
    return failed(Cause.GPUS_HIDDEN) if facts.are_all_gpus_hidden else passed(Cause.GPUS_VISIBLE)


def check_leases(facts: Facts) -> Finding:
    if facts.inventory.has_no_driver:
        return not_applicable(Cause.NO_GPU_TO_LEASE)
    if facts.lease_problem:
        return failed(Cause.LEASE_FOLDER_UNUSABLE)
    if facts.unreadable_files:
        return warning(Cause.LEASE_FILES_UNREADABLE)
    if facts.is_folder_on_fuse:
        return warning(Cause.LEASE_FOLDER_ON_FUSE)
    if not facts.is_fallback_folder:
        return passed(Cause.LEASES_WORK)
    if facts.is_in_container:
        return failed(Cause.LEASE_FOLDER_OF_CONTAINER)
    return passed(Cause.LEASE_FOLDER_OF_FIRST_USER)


def check_policy(facts: Facts) -> Finding:
    layers = _layers_with_mistakes(facts)
    if not layers:
        return passed(Cause.POLICY_VALID)
    if LayerName.SYSTEM not in layers or not facts.system_policy_owner:
        return failed(Cause.POLICY_MISTAKES)
    # If all mistakes are in the system policy, only warn: the user can't correct them, and the other settings apply.
    if layers == {LayerName.SYSTEM}:
        return warning(Cause.POLICY_MISTAKES_OF_HOST)
    return failed(Cause.POLICY_MISTAKES_OF_USER_AND_HOST)


def _layers_with_mistakes(facts: Facts) -> set[LayerName]:
    """Return the layers that have a mistake, set a list that matches no GPU, or switch autogpu off."""
    resolved = facts.resolved
    layers = {problem.origin.layer for problem in (*resolved.problems, *resolved.system_notes)}
    keys = [unmatched.key for unmatched in unmatched_lists(resolved.policy, facts.inventory, facts.visible)]
    if not resolved.policy.enabled:
        keys.append("enabled")
    return layers | {resolved.settings[key].origin.layer for key in keys}


# The checks, keyed by their name in `doctor --json`. Each check relies on the facts that earlier checks test.
CHECKS = {
    "python": check_python,
    "hook": check_hook,
    "environment": check_environment,
    "policy": check_policy,
    "driver": check_driver,
    "health": check_health,
    "cuda": check_cuda,
    "visible": check_visible,
    "leases": check_leases,
}
