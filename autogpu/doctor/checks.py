"""The checks of ``autogpu doctor``, and the function that gathers the facts for them.

To gather the facts, :func:`gather` locks the lease folder once and writes a temporary file into it. It changes nothing
else. Each check is a pure function of the facts. If it fails, it returns a remedy, mostly a command that the user can
paste.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Iterator, Mapping

from autogpu import frameworks, lease
from autogpu.devices import probe
from autogpu.devices.cuda import START, START_DEADLINE_S
from autogpu.devices.enumeration import cards, takeable
from autogpu.devices.model import FailureCause
from autogpu.devices.nvml import NO_ANSWER
from autogpu.doctor.frameworks import QUESTIONS, judge
from autogpu.doctor.model import Facts, Finding, State, failed, failed_or_slow, not_applicable, passed
from autogpu.engines.facts import granted_here
from autogpu.engines.model import settled
from autogpu.host import hook_folder
from autogpu.install import STEPS, fresh_start, is_hosts, run_folder, template_file, template_folder
from autogpu.lease import Folder
from autogpu.lease.folder import FALLBACK_FOLDER, HOST_FOLDER, FolderOrigin
from autogpu.lease.leases import LockedFile
from autogpu.policy import SYSTEM_FILE, resolve, working_directory
from autogpu.policy.model import LayerName
from autogpu.reporting import leases as lease_messages
from autogpu.reporting import policy as policy_messages
from autogpu.reporting.engines import denial
from autogpu.reporting.gpus import gpu_names, health_faults
from autogpu.selection.model import VisibleSpec
from autogpu.selection.ranking import unmatched_lists
from autogpu.selection.visible_devices import original_environ
from autogpu.snippet import Answer, run_snippet
from autogpu.text import counted, listed, printable
from autogpu.users import host_setup_command, is_person, sudo, user_name
from autogpu.variables import CUDA_VISIBLE_DEVICES, LEASE_DIR, SWITCH

# A framework takes seconds to import, a minute from a cold network disk.
_DEADLINE_S = 180.0
_PYTHON_DEADLINE_S = 20.0

# The Python versions that autogpu's tests run on.
_OLDEST = (3, 7)
NEWEST_TESTED = (3, 15)

# Report at most this number of unreadable files in the lease folder; there may be thousands.
_MOST_UNREADABLE = 4

_FRAMEWORK = """
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

_PYTHON = """
import importlib.util, json, sys
has_pip = importlib.util.find_spec("pip") is not None
print(json.dumps((sys.version_info[:2], sys.implementation.cache_tag, has_pip)))
"""
_PREFIX = "import json, os, sys; print(json.dumps(os.path.realpath(sys.prefix)))"


def gather(environ: Mapping[str, str], executable: str = sys.executable) -> Facts:
    """Gather the facts. This takes some seconds, most of them for importing the frameworks.

    Args:
        executable: The Python to examine. Its environment may have no autogpu.
    """
    is_this = executable == sys.executable
    reading = probe.start(environ)
    start = fresh_start(executable, environ)
    told = run_snippet(executable, _PYTHON, environ, _PYTHON_DEADLINE_S).value
    version, tag, has_pip = told or (sys.version_info[:2], "", True)
    inventory = probe.finish(reading)
    all_gpus = {name: value for name, value in environ.items() if name != CUDA_VISIBLE_DEVICES}
    folder, lease_problem = try_folder(environ)
    return Facts(
        environ=original_environ(environ),
        executable=executable,
        start=start,
        pythons=_other_pythons(environ) if is_this else {},
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
        is_own=is_this,
        has_hosts_hook=start.hook is not None and is_hosts(start.hook),
        hosts_folder=hook_folder.examine(hook_folder.LINK),
        is_person=is_person(os.getuid()),
        sudo=sudo(),
    )


def _ask_framework(executable: str, module: str, environ: Mapping[str, str]) -> Answer:
    questions = textwrap.indent(QUESTIONS[module].strip(), " " * 8)
    program = _FRAMEWORK.format(module=module, questions=questions, package=str(Path(__file__).parents[1]))
    # Switch autogpu off: it must not change the GPUs that the framework finds, nor print lines of its own.
    return run_snippet(executable, program, {**environ, SWITCH: "0"}, _DEADLINE_S)


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
    """Return the paths of ``python`` and ``python3`` on PATH, keyed by name, that belong to another environment."""
    found = {}
    for name in ("python", "python3"):
        path = shutil.which(name, path=environ.get("PATH"))
        prefix = path and run_snippet(path, _PREFIX, environ, _PYTHON_DEADLINE_S).value
        if path and prefix not in (None, os.path.realpath(sys.prefix)):
            found[name] = path
    return found


def try_folder(environ: Mapping[str, str]) -> tuple[Folder | None, lease.LeaseProblem | None]:
    """Return this user's lease folder and the problem that prevents claims; both ``None`` if there is no folder yet."""
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


def unreadable_files(folder: Folder | None) -> list[str]:
    try:
        found = lease.snapshot(folder, is_partial=True).unreadable if folder else ()
    except lease.LeaseUnavailable:  # try_folder reports it
        found = ()
    return [lease_messages.unreadable_file(file) for file in found[:_MOST_UNREADABLE]]


def owner_to_ask(file: Path) -> str:
    """Return the name of the file's owner if this user can't write the file; else ``""``."""
    try:
        return "" if os.access(str(file), os.W_OK) else user_name(file.stat().st_uid)
    except OSError:
        return ""


def _is_in_container(environ: Mapping[str, str]) -> bool:
    marks = ("/.dockerenv", "/run/.containerenv")
    return any(Path(mark).exists() for mark in marks) or "KUBERNETES_SERVICE_HOST" in environ


def examine(facts: Facts) -> dict[str, Finding]:
    """Return the findings, keyed by check. The findings about installed frameworks come last."""
    findings = {name: check(facts) for name, check in CHECKS.items()}
    installed = {module: answer for module, answer in facts.frameworks.items() if answer.value or answer.error}
    for module, answer in installed.items():
        findings.update(_examine_framework(module, answer, facts))
    if not installed:
        what = f"no supported framework ({', '.join(facts.frameworks)}) is installed for {facts.executable}"
        findings["frameworks"] = failed(what, facts.pip(f"install {frameworks.to_install(facts.version)}"))
        if facts.is_own and facts.hosts_folder:
            findings["frameworks"] = not_applicable(f"{what}; to examine another Python: autogpu doctor --python PATH")
    return findings


def _examine_framework(module: str, answer: Answer, facts: Facts) -> dict[str, Finding]:
    framework = frameworks.load(module)
    newer = f"upgrade autogpu: a newer version may support this {framework.NAME}"
    found = answer.value or {"error": answer.error}
    error, obstacle = (printable(found.get(key, "")) for key in ("error", "obstacle"))
    if error:
        what = f"{framework.NAME} can't be used: {error}"
        return {module: failed_or_slow(what, f"repair {framework.NAME} first", is_slow=answer.timed_out)}
    if obstacle:
        remedy = "set HIP_VISIBLE_DEVICES to choose a GPU" if "ROCm" in obstacle else newer
        return {module: failed(obstacle, remedy)}
    build = judge(module, framework.NAME, found, facts)
    hooks = passed("autogpu finds every function that it hooks into")
    if not found["build"]:
        hooks = not_applicable(f"nothing to hook into in a {framework.NAME} without CUDA")
    elif found["missing"]:
        lacks = "; ".join(f"{name}: {effect}" for name, effect in found["missing"].items())
        hooks = failed(f"{framework.NAME} {found['version']} lacks {printable(lacks)}", newer)
    return {module: build, f"{module}-hooks": hooks}


def check_python(facts: Facts) -> Finding:
    if facts.version < _OLDEST:
        oldest = _numbered(_OLDEST)
        return failed(f"{facts.executable} is older than {oldest}", f"create an environment with {oldest} or newer")
    if facts.version > NEWEST_TESTED:
        version, newest = _numbered(facts.version), _numbered(NEWEST_TESTED)
        what = f"{facts.executable} is {version}; this autogpu was not tested with it, only up to {newest}"
        remedy = f"{facts.pip('install --upgrade autogpu')}; if a script behaves differently with AUTOGPU=0, report it"
        return Finding(State.WARNING, what, remedy)
    return passed(f"{facts.executable} is {_numbered(facts.version)}; autogpu is tested with this version")


def _numbered(version: tuple[int, int]) -> str:
    return "Python {}.{}".format(*version)


def check_hook(facts: Facts) -> Finding:
    hook = facts.start.hook
    remedy = f"{facts.executable} -m autogpu install"
    if facts.version < _OLDEST:
        return not_applicable("autogpu does not work in this Python")
    if not facts.is_own:
        remedy = f"{facts.pip('install autogpu')}, then {remedy}"
    if hook is None:
        return _examine_missing_hook(facts, remedy)
    if facts.has_hosts_hook:
        return _examine_hosts_hook(hook, facts)
    if not facts.hook_is_current:
        return failed(f"{hook} is from another version of autogpu than the installed package", remedy)
    return passed(f"a fresh {facts.executable} loads {hook}")


def _examine_missing_hook(facts: Facts, remedy: str) -> Finding:
    start = facts.start
    if start.complaint:
        return failed_or_slow(f"a fresh Python reports: {printable(start.complaint)}", remedy, is_slow=start.timed_out)
    hidden = f"; its sitecustomize is {start.sitecustomize}" if start.sitecustomize else ""
    if facts.hosts_folder and not facts.is_person:
        what = f"{hook_folder.LINK} does not load autogpu for root and system users"
        return Finding(State.WARNING, what, f"{remedy}, or run this command as an ordinary user")
    if facts.hosts_folder and start.sitecustomize:
        hidden += f", which hides the one in {hook_folder.LINK}"
    elif facts.hosts_folder:
        hidden = f"; {hook_folder.LINK} is not on its PYTHONPATH"
        remedy = f'log in again, or export PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{hook_folder.LINK}"'
    return failed(f"a fresh {facts.executable} does not load autogpu{hidden}", remedy)


def _examine_hosts_hook(hook: Path, facts: Facts) -> Finding:
    folder = facts.hosts_folder
    build = f"{host_setup_command(facts.sudo)} --all-pythons"
    if folder is None or folder.problem:
        why = folder.problem if folder else f"{hook_folder.LINK} does not lead to it"
        return failed(
            f"the host's hook {hook} can't be used: {printable(why)}", f"ask the administrator to run: {build}"
        )
    what = f"a fresh {facts.executable} loads the host's hook {hook} (autogpu {folder.version})"
    if facts.tag not in folder.tags:
        what += f"; the hook has no compiled files for {facts.tag}, so each start takes longer"
        return Finding(State.WARNING, what, f"ask the administrator to run: {build} --python {facts.executable}")
    return passed(what)


def check_environment(facts: Facts) -> Finding:
    if not facts.is_own:
        return not_applicable(f"PATH is not checked, because --python selects {facts.executable}")
    if not facts.pythons:
        return passed(f"`python` belongs to the environment that has autogpu ({facts.executable})")
    others = " and ".join(f"`{name}` is {path}" for name, path in facts.pythons.items())
    what = f"{others}, but autogpu is installed in another environment ({facts.executable})"
    if facts.hosts_folder:  # the host's hook also loads autogpu in that Python
        return Finding(
            State.WARNING, what, f"to examine it: autogpu doctor --python {next(iter(facts.pythons.values()))}"
        )
    return failed(
        what, f'export PATH="{Path(facts.executable).parent}:$PATH", or install autogpu in the other environment too'
    )


def check_driver(facts: Facts) -> Finding:
    inventory = facts.inventory
    if inventory.failure_cause is FailureCause.PYNVML:
        what = f"{printable(str(inventory.failure))}: autogpu can't tell which GPU is idle"
        return failed(what, facts.pip("install --upgrade nvidia-ml-py"))
    if inventory.has_no_driver:
        return _examine_missing_driver(facts)
    unreadable = [each for each in inventory.unreadable if each.reason != NO_ANSWER] or inventory.unreadable
    lost = "; ".join(f"GPU {each.index}: {printable(each.reason)}" for each in unreadable)
    if inventory.failure:
        remedy = f"nvidia-smi should report the same; after an update of the driver: {facts.sudo}reboot"
        return failed_or_slow(printable(inventory.failure), remedy, is_slow=inventory.may_be_busy)
    if lost:
        remedy = f"to find the cause: {facts.sudo}dmesg | grep -i xid; a lost GPU needs a reboot"
        return failed_or_slow(f"not every GPU can be read: {lost}", remedy, is_slow=inventory.may_be_busy)
    gpus = counted(len(cards(inventory.devices)), "GPU")
    denied = f"; {inventory.denied} more not granted to this process" if inventory.denied else ""
    return passed(f"NVML {inventory.driver_version} reads {gpus}{denied}")


def _examine_missing_driver(facts: Facts) -> Finding:
    if facts.cuda_count:
        what = "CUDA sees GPUs, but NVML (libnvidia-ml.so.1) is missing: autogpu can't tell which GPU is idle"
        remedy = "install all of the driver's libraries; in a container: -e NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        return failed(what, remedy)
    what = "no NVIDIA driver here: scripts run on the CPU, as without autogpu"
    return not_applicable(f"{what}; to give a container the host's driver: docker run --gpus all")


def check_health(facts: Facts) -> Finding:
    if not cards(facts.inventory.devices):
        return not_applicable("no GPU to examine")
    found = [*_faulty_gpus(facts), *_gpus_without_instance(facts)]
    if not found:
        return passed("the driver reports no GPU faults")
    return failed("; ".join(what for what, _ in found), "; ".join(remedy for _, remedy in found))


def _faulty_gpus(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield the faults of all GPUs, and the remedy."""
    faulty = [device for device in cards(facts.inventory.devices) if not device.is_healthy]
    if faulty:
        what = "; ".join(f"GPU {device.index}: {listed(health_faults(device))}" for device in faulty)
        names = gpu_names(device.index for device in faulty)
        reset = f"reset {names} (`nvidia-smi --gpu-reset`, while no process uses it)"
        yield what, f"{reset} or reboot the machine; replace a card whose faults come back"


def _gpus_without_instance(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield which GPUs are in MIG mode without an instance, and the remedy."""
    uncut = [device.label for device in takeable(facts.inventory.devices) if device.mig_enabled]
    if uncut:
        what = f"{gpu_names(uncut)}: in MIG mode without an instance, so no job can use it"
        yield what, f"{facts.sudo}nvidia-smi -i {','.join(uncut)} -mig 0, or create MIG instances"


def check_cuda(facts: Facts) -> Finding:
    if facts.inventory.has_no_driver:
        return not_applicable("no NVIDIA driver")
    if not facts.inventory.devices and (facts.grant.is_none or facts.inventory.denied):
        return not_applicable("no GPU is granted to this process")
    if facts.cuda_count is None:
        remedy = f"{facts.sudo}reboot, or reinstall the driver; in a container: start it with --gpus all"
        what = f"CUDA does not start: {printable(facts.cuda.error)}"
        return failed_or_slow(what, remedy, is_slow=facts.cuda.timed_out)
    readable = len(facts.inventory.devices) + len(facts.inventory.unreadable)
    if readable and facts.cuda_count != readable and not any(device.mig_enabled for device in facts.inventory.devices):
        what = f"CUDA sees {counted(facts.cuda_count, 'GPU')} and NVML {readable}"
        return failed(what, "give the container all of /dev/nvidia*, so that CUDA and NVML see the same GPUs")
    return passed(f"CUDA sees {counted(facts.cuda_count, 'GPU')}")


def check_visible(facts: Facts) -> Finding:
    value = facts.environ.get(CUDA_VISIBLE_DEVICES)
    if facts.grant.is_none:
        return not_applicable("; ".join(denial(facts.grant)))
    if facts.inventory.has_no_driver or value is None:
        return not_applicable(f"{CUDA_VISIBLE_DEVICES} hides no GPU")
    if facts.hides_all_gpus:
        what = f'{CUDA_VISIBLE_DEVICES}="{printable(value)}" hides every GPU from this shell'
        return failed(what, f"unset {CUDA_VISIBLE_DEVICES}")
    by = f", granted by {facts.grant.engine}" if facts.grant.engine else ""
    return passed(f"{CUDA_VISIBLE_DEVICES}={printable(value)}{by}: autogpu chooses among these")


def check_leases(facts: Facts) -> Finding:
    if facts.inventory.has_no_driver:
        return not_applicable("no GPU to claim")
    if facts.lease_problem:
        return failed(*lease_messages.lease_problem(facts.lease_problem))
    path, is_fallback = _lease_folder(facts)
    if facts.unreadable_files:
        what = f"in {path}, {'; '.join(facts.unreadable_files)}; autogpu ignores claims in unreadable files"
        return Finding(State.WARNING, what, "ask the owner to remove the file, or remove it as root")
    if facts.is_folder_on_fuse:
        return Finding(State.WARNING, *lease_messages.folder_on_fuse(path))
    if is_fallback and facts.is_in_container:
        what = f"claims are in {path} of this container only: jobs inside and outside of it don't see each other"
        on_host = host_setup_command("sudo ")
        remedy = f"on the host: {on_host}; then start the container with -v {HOST_FOLDER}:{HOST_FOLDER}"
        return failed(what, remedy)
    note = f", which belongs to its first user; to make one for all users: `{host_setup_command(facts.sudo)}`"
    when = "" if facts.folder else " (the first claim makes it)"
    return passed(f"claims are in {path}{when}" + (note if is_fallback else ""))


def _lease_folder(facts: Facts) -> tuple[str, bool]:
    """Return the path of the lease folder, which may not exist yet, and ``True`` if it is the fallback."""
    if facts.folder:
        return printable(str(facts.folder.path)), facts.folder.origin is FolderOrigin.FALLBACK
    named = facts.environ.get(LEASE_DIR)
    return printable(named or str(FALLBACK_FOLDER)), not named


def check_policy(facts: Facts) -> Finding:
    mistakes = _policy_mistakes(facts)
    if not mistakes:
        files = ", ".join(printable(str(file)) for file in facts.resolved.files) or "no file: the defaults are used"
        return passed(f"the policy is valid ({files})")
    what = "; ".join(text for _, text in mistakes)
    remedy = "correct or unset it; `autogpu config` shows the values and where each is set"
    has_own = any(layer is not LayerName.SYSTEM for layer, _ in mistakes)
    has_others = any(layer is LayerName.SYSTEM for layer, _ in mistakes) and facts.system_policy_owner
    if not has_others:
        return failed(what, remedy)
    ask = f"ask {facts.system_policy_owner}, who owns {SYSTEM_FILE}, to correct it: you can't write it"
    # If all mistakes are in the system policy, only warn: the user can't correct them, and the other settings apply.
    return failed(what, f"{remedy}; {ask}") if has_own else Finding(State.WARNING, what, ask)


def _policy_mistakes(facts: Facts) -> list[tuple[LayerName, str]]:
    resolved = facts.resolved
    found = [(problem.origin.layer, str(problem)) for problem in (*resolved.problems, *resolved.system_notes)]
    spec = VisibleSpec(facts.environ.get(CUDA_VISIBLE_DEVICES))
    for unmatched in unmatched_lists(resolved.policy, facts.inventory, spec):
        layer = resolved.settings[unmatched.key].origin.layer
        found.append((layer, policy_messages.unmatched_list(unmatched, resolved, facts.inventory)))
    if not resolved.policy.enabled:
        origin = resolved.settings["enabled"].origin
        found.append((origin.layer, f"autogpu is switched off by {origin}"))
    return found


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
