"""Sentences about the findings of ``autogpu doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import Callable, Iterator, Mapping

from autogpu.devices.enumeration import cards, takeable
from autogpu.devices.nvml import NO_ANSWER
from autogpu.doctor.model import NEWEST_TESTED, OLDEST, Cause, Facts, Finding
from autogpu.frameworks import load
from autogpu.host.hook_folder import LINK
from autogpu.lease.folder import HOST_FOLDER
from autogpu.policy import SYSTEM_FILE
from autogpu.reporting import policy as policy_messages
from autogpu.reporting.engines import denial
from autogpu.reporting.gpus import gpu_names, health_faults
from autogpu.reporting.host_setup import folder_problem
from autogpu.reporting.installation import autogpu_from_a_clone, cuda_build, framework_to_install, reason_command
from autogpu.reporting.leases import folder_on_fuse, lease_problem, unreadable_file
from autogpu.reporting.mistakes import policy_problem
from autogpu.text import counted, listed, printable
from autogpu.users import host_setup_command
from autogpu.variables import CUDA_VISIBLE_DEVICES

# ``autogpu doctor`` names at most this number of unreadable lease files, because a folder may contain thousands.
_MOST_UNREADABLE = 4

_CORRECT_POLICY = "correct or remove these settings; `autogpu config` shows each value and where it is set"


def sentence(finding: Finding, facts: Facts) -> tuple[str, str]:
    """Return two texts about a finding: a description, and a command or change that helps (``""`` if there is none)."""
    if finding.module:
        what, remedy = _OF_FRAMEWORKS[finding.cause](facts, finding.module)
    else:
        what, remedy = _SENTENCES[finding.cause](facts)
    if finding.is_slow:
        remedy = f"run `autogpu doctor` again when the machine is less busy; if the finding stays: {remedy}"
    return what, remedy


def _python(version: tuple[int, int]) -> str:
    return "Python {}.{}".format(*version)


def _install_command(facts: Facts) -> str:
    install = f"{facts.executable} -m autogpu install"
    if facts.is_own_python:
        return install
    return f"{autogpu_from_a_clone(facts.executable, has_pip=facts.has_pip)}, then {install}"


def _sitecustomize(facts: Facts) -> str:
    return f"; its sitecustomize is {facts.start.sitecustomize}" if facts.start.sitecustomize else ""


def _host_hook_unusable(facts: Facts) -> tuple[str, str]:
    problem = facts.hosts_folder and facts.hosts_folder.problem
    why = folder_problem(problem) if problem else f"the link {LINK} is missing"
    return f"the host's hook {facts.start.hook} can't be used: {printable(why)}", _advice_to_build(facts)


def _host_hook(facts: Facts) -> str:
    version = facts.hosts_folder and facts.hosts_folder.version
    return f"a fresh {facts.executable} loads the host's hook {facts.start.hook} (autogpu {version})"


def _advice_to_build(facts: Facts) -> str:
    return f"ask the administrator to run: {host_setup_command(facts.sudo)} --all-pythons"


def _other_pythons(facts: Facts) -> str:
    others = " and ".join(f"`{name}` is {path}" for name, path in facts.pythons.items())
    return f"{others}, but autogpu is installed for {facts.executable}"


def _policy_files(facts: Facts) -> str:
    return ", ".join(printable(str(file)) for file in facts.resolved.files) or "no file: the defaults are used"


def _policy_mistakes(facts: Facts) -> str:
    return "; ".join(_each_policy_mistake(facts))


def _each_policy_mistake(facts: Facts) -> Iterator[str]:
    resolved = facts.resolved
    yield from map(policy_problem, (*resolved.problems, *resolved.system_notes))
    yield from policy_messages.unmatched(resolved, facts.inventory, facts.visible)
    if not resolved.policy.enabled:
        yield f"autogpu is switched off by {resolved.settings['enabled'].origin}"


def _ask_owner_of_policy(facts: Facts) -> str:
    return f"ask {facts.system_policy_owner} to correct {SYSTEM_FILE}, which you can't write"


def _gpus_read(facts: Facts) -> str:
    denied = facts.inventory.denied
    gpus = counted(len(cards(facts.inventory.devices)), "GPU")
    return gpus + (f"; {denied} more not granted to this process" if denied else "")


def _unreadable_gpus(facts: Facts) -> str:
    # If some GPUs are lost, name these alone: the others may only be late.
    lost = [each for each in facts.inventory.unreadable if each.reason != NO_ANSWER] or facts.inventory.unreadable
    return "; ".join(f"GPU {each.index}: {printable(each.reason)}" for each in lost)


def _gpus_faulty(facts: Facts) -> tuple[str, str]:
    """Return the faults of all GPUs, and the remedies. Add the GPUs in MIG mode without an instance, if any."""
    faulty = [device for device in cards(facts.inventory.devices) if not device.is_healthy]
    what = "; ".join(f"GPU {device.index}: {listed(health_faults(device))}" for device in faulty)
    names = gpu_names(device.index for device in faulty)
    indices = ",".join(str(device.index) for device in faulty)
    reset = f"while no process uses {names}: {facts.sudo}nvidia-smi --gpu-reset -i {indices}"
    remedy = f"{reset}; or reboot the machine; replace a card whose faults come back"
    if not _labels_without_instance(facts):
        return what, remedy
    other, remedy_of_other = _gpus_without_instance(facts)
    return f"{what}; {other}", f"{remedy}; {remedy_of_other}"


def _gpus_without_instance(facts: Facts) -> tuple[str, str]:
    labels = _labels_without_instance(facts)
    what = f"{gpu_names(labels)}: in MIG mode without an instance; jobs can use only instances"
    return what, f"to turn MIG mode off: {facts.sudo}nvidia-smi -i {','.join(labels)} -mig 0; or create MIG instances"


def _labels_without_instance(facts: Facts) -> list[str]:
    return [device.label for device in takeable(facts.inventory.devices) if device.mig_enabled]


def _gpus_of_cuda(facts: Facts) -> str:
    return counted(facts.cuda_count or 0, "GPU")


def _visible_gpus(facts: Facts) -> str:
    by = f", granted by {facts.grant.engine}" if facts.grant.engine else ""
    return f"{CUDA_VISIBLE_DEVICES}={printable(facts.visible.value or '')}{by}: autogpu chooses among these GPUs"


def _claims_in(facts: Facts) -> str:
    return f"claims are in the folder {printable(facts.lease_path)}"


def _first_claim(facts: Facts) -> str:
    return "" if facts.folder else " (the first claim makes it)"


def _lease_files_unreadable(facts: Facts) -> tuple[str, str]:
    files = [unreadable_file(file) for file in facts.unreadable_files[:_MOST_UNREADABLE]]
    more = len(facts.unreadable_files) - len(files)
    if more:
        files.append(f"and {more} more")
    what = f"in {printable(facts.lease_path)}, {'; '.join(files)}; autogpu ignores claims in unreadable files"
    return what, "ask the owners to remove these files, or remove them as root"


def _lease_folder_unusable(facts: Facts) -> tuple[str, str]:
    assert facts.lease_problem is not None
    return lease_problem(facts.lease_problem)


def _no_framework(facts: Facts) -> str:
    return f"no supported framework ({', '.join(facts.frameworks)}) is installed for {facts.executable}"


# Description and remedy of each cause, in the order of :class:`Cause`.
_SENTENCES: Mapping[Cause, Callable[[Facts], tuple[str, str]]] = {
    Cause.PYTHON_TESTED: lambda facts: (
        f"{facts.executable} is {_python(facts.version)}; autogpu is tested with this version",
        "",
    ),
    Cause.PYTHON_TOO_OLD: lambda facts: (
        f"{facts.executable} is older than {_python(OLDEST)}",
        f"create an environment with {_python(OLDEST)} or newer",
    ),
    Cause.PYTHON_UNTESTED: lambda facts: (
        f"{facts.executable} is {_python(facts.version)}; "
        f"this autogpu was not tested with it, only up to {_python(NEWEST_TESTED)}",
        f"upgrade autogpu: {autogpu_from_a_clone(facts.executable, has_pip=facts.has_pip)}; "
        "if a script behaves differently with AUTOGPU=0, report it",
    ),
    Cause.HOOK_LOADED: lambda facts: (f"a fresh {facts.executable} loads {facts.start.hook}", ""),
    Cause.HOOK_MISSING: lambda facts: (
        f"a fresh {facts.executable} does not load autogpu{_sitecustomize(facts)}",
        _install_command(facts),
    ),
    Cause.HOOK_NEEDS_NEWER_PYTHON: lambda _: (f"autogpu's hook needs {_python(OLDEST)} or newer", ""),
    Cause.HOOK_OF_OTHER_VERSION: lambda facts: (
        f"{facts.start.hook} is from another version of autogpu than the installed package",
        _install_command(facts),
    ),
    Cause.FRESH_PYTHON_FAILS: lambda facts: (
        f"a fresh {facts.executable} does not load autogpu: {printable(facts.start.complaint)}",
        _install_command(facts),
    ),
    Cause.HOST_HOOK_LOADED: lambda facts: (_host_hook(facts), ""),
    Cause.HOST_HOOK_HIDDEN: lambda facts: (
        f"a fresh {facts.executable} does not load autogpu{_sitecustomize(facts)}, which hides the one in {LINK}",
        _install_command(facts),
    ),
    Cause.HOST_HOOK_NOT_COMPILED: lambda facts: (
        f"{_host_hook(facts)}; the hook has no compiled files for {facts.tag}, so each start takes longer",
        f"{_advice_to_build(facts)} --python {facts.executable}",
    ),
    Cause.HOST_HOOK_NOT_ON_PATH: lambda facts: (
        f"a fresh {facts.executable} does not load autogpu; {LINK} is not on its PYTHONPATH",
        f'log in again, or export PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{LINK}"',
    ),
    Cause.HOST_HOOK_SKIPS_USER: lambda facts: (
        f"{LINK} does not load autogpu for root and system users",
        f"{_install_command(facts)}, or run this command as an ordinary user",
    ),
    Cause.HOST_HOOK_UNUSABLE: _host_hook_unusable,
    Cause.ENVIRONMENT_FIRST_ON_PATH: lambda facts: (
        f"`python` belongs to the environment that has autogpu ({facts.executable})",
        "",
    ),
    Cause.ENVIRONMENT_NOT_CHECKED: lambda facts: (
        f"PATH is not checked, because --python selects {facts.executable}",
        "",
    ),
    Cause.OTHER_ENVIRONMENT_ON_PATH: lambda facts: (
        _other_pythons(facts),
        f'export PATH="{Path(facts.executable).parent}:$PATH", '
        f"or install autogpu for {' and '.join(facts.pythons.values())} too",
    ),
    Cause.OTHER_ENVIRONMENT_WITH_HOST_HOOK: lambda facts: (
        f"{_other_pythons(facts)}; the host's hook may load autogpu there too",
        f"to examine that Python: autogpu doctor --python {next(iter(facts.pythons.values()))}",
    ),
    Cause.POLICY_VALID: lambda facts: (f"the policy is valid ({_policy_files(facts)})", ""),
    Cause.POLICY_MISTAKES: lambda facts: (_policy_mistakes(facts), _CORRECT_POLICY),
    Cause.POLICY_MISTAKES_OF_USER_AND_HOST: lambda facts: (
        _policy_mistakes(facts),
        f"{_CORRECT_POLICY}; {_ask_owner_of_policy(facts)}",
    ),
    Cause.POLICY_MISTAKES_OF_HOST: lambda facts: (_policy_mistakes(facts), _ask_owner_of_policy(facts)),
    Cause.DRIVER_WORKS: lambda facts: (f"NVML {facts.inventory.driver_version} reads {_gpus_read(facts)}", ""),
    Cause.DRIVER_FAILS: lambda facts: (
        printable(facts.inventory.failure or ""),
        f"after an update of the driver: {facts.sudo}reboot; else run nvidia-smi, which should report the same error",
    ),
    Cause.DRIVER_MISSING: lambda _: (
        "no NVIDIA driver here: scripts run on the CPU, as without autogpu",
        "to give a container the host's driver: docker run --gpus all",
    ),
    Cause.GPUS_UNREADABLE: lambda facts: (
        f"not every GPU can be read: {_unreadable_gpus(facts)}",
        f"to find the cause: {facts.sudo}dmesg | grep -i xid; a lost GPU needs a reboot",
    ),
    Cause.NVML_MISSING: lambda _: (
        "CUDA sees GPUs, but NVML (libnvidia-ml.so.1) is missing: autogpu can't tell which GPU is idle",
        "install all of the driver's libraries; "
        "in a container: start it with -e NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    ),
    Cause.PYNVML_UNUSABLE: lambda facts: (
        f"{printable(str(facts.inventory.failure))}: autogpu can't tell which GPU is idle",
        facts.pip("install --upgrade nvidia-ml-py"),
    ),
    Cause.GPUS_HEALTHY: lambda _: ("the driver reports no GPU faults", ""),
    Cause.GPUS_FAULTY: _gpus_faulty,
    Cause.GPUS_WITHOUT_INSTANCE: _gpus_without_instance,
    Cause.NO_GPU_TO_EXAMINE: lambda _: ("no GPU to examine", ""),
    Cause.CUDA_WORKS: lambda facts: (f"CUDA sees {_gpus_of_cuda(facts)}", ""),
    Cause.CUDA_DIFFERS_FROM_NVML: lambda facts: (
        f"CUDA sees {_gpus_of_cuda(facts)} and NVML {facts.nvml_count}",
        "give the container all of /dev/nvidia*, so that CUDA and NVML see the same GPUs",
    ),
    Cause.CUDA_DOES_NOT_START: lambda facts: (
        f"CUDA does not start: {printable(facts.cuda.error)}",
        f"{facts.sudo}reboot, or reinstall the driver; in a container: start it with --gpus all",
    ),
    Cause.CUDA_HAS_NO_GPU: lambda _: ("CUDA has no GPU to use: none is granted to this process", ""),
    Cause.CUDA_NEEDS_DRIVER: lambda _: ("CUDA needs an NVIDIA driver", ""),
    Cause.GPUS_VISIBLE: lambda facts: (_visible_gpus(facts), ""),
    Cause.GPUS_HIDDEN: lambda facts: (
        f'{CUDA_VISIBLE_DEVICES}="{printable(facts.visible.value or "")}" hides every GPU from this shell',
        f"unset {CUDA_VISIBLE_DEVICES}",
    ),
    Cause.GPUS_NOT_GRANTED: lambda facts: denial(facts.grant),
    Cause.GPUS_NOT_RESTRICTED: lambda _: (f"{CUDA_VISIBLE_DEVICES} hides no GPU", ""),
    Cause.LEASES_WORK: lambda facts: (f"{_claims_in(facts)}{_first_claim(facts)}", ""),
    Cause.LEASE_FILES_UNREADABLE: _lease_files_unreadable,
    Cause.LEASE_FOLDER_OF_CONTAINER: lambda facts: (
        f"{_claims_in(facts)} of this container only: jobs inside and outside of the container don't see each other",
        f"on the host: {host_setup_command('sudo ')}; then start the container with -v {HOST_FOLDER}:{HOST_FOLDER}",
    ),
    Cause.LEASE_FOLDER_OF_FIRST_USER: lambda facts: (
        f"{_claims_in(facts)}{_first_claim(facts)}, which belongs to its first user",
        f"to make a folder for all users: {host_setup_command(facts.sudo)}",
    ),
    Cause.LEASE_FOLDER_ON_FUSE: lambda facts: folder_on_fuse(facts.lease_path),
    Cause.LEASE_FOLDER_UNUSABLE: _lease_folder_unusable,
    Cause.NO_GPU_TO_LEASE: lambda _: ("no GPU to claim", ""),
    Cause.FRAMEWORK_MISSING: lambda facts: (
        _no_framework(facts),
        facts.pip(f"install {framework_to_install(facts.version)}"),
    ),
    Cause.NO_FRAMEWORK_BESIDE_HOST_HOOK: lambda facts: (
        _no_framework(facts),
        "to examine another Python: autogpu doctor --python PATH",
    ),
}


def _answer(facts: Facts, module: str, key: str) -> str:
    return printable(facts.answer_of(module)[key])


def _name(facts: Facts, module: str) -> str:
    return f"{load(module).NAME} {_answer(facts, module, 'version')}"


def _build(facts: Facts, module: str) -> str:
    return f"{_name(facts, module)}, {_answer(facts, module, 'build')}"


def _newer_autogpu(module: str) -> str:
    return f"upgrade autogpu: a newer version may support this {load(module).NAME}"


def _framework_without_cuda(facts: Facts, module: str) -> tuple[str, str]:
    build = cuda_build(module, _answer(facts, module, "version"), facts, lacks_libraries=False)
    return f"{_name(facts, module)} is built without CUDA and uses no GPU", build


def _framework_finds_no_gpu(facts: Facts, module: str) -> tuple[str, str]:
    gpus = counted(len(facts.inventory.devices), "GPU")
    why = "it finds no matching CUDA libraries, or the driver is too old"
    libraries = cuda_build(module, _answer(facts, module, "version"), facts, lacks_libraries=True)
    return (
        f"{_build(facts, module)}, lists no GPU, but the driver has {gpus}: {why}",
        f"{libraries}; to see the reason: {reason_command(module, facts.executable)}",
    )


def _gpus_listed(facts: Facts, module: str) -> str:
    count = facts.answer_of(module)["gpus"]
    return "" if count is None else f", lists {counted(count, 'GPU')}"


def _missing_hooks(facts: Facts, module: str) -> str:
    return printable("; ".join(f"{name}: {effect}" for name, effect in facts.answer_of(module)["missing"].items()))


_OF_FRAMEWORKS: Mapping[Cause, Callable[[Facts, str], tuple[str, str]]] = {
    Cause.FRAMEWORK_BUILT_FOR_CUDA: lambda facts, module: (
        f"{_build(facts, module)}{_gpus_listed(facts, module)}",
        "",
    ),
    Cause.FRAMEWORK_BUILT_FOR_ROCM: lambda facts, module: (
        _answer(facts, module, "obstacle"),
        "set HIP_VISIBLE_DEVICES to choose a GPU",
    ),
    Cause.FRAMEWORK_FINDS_NO_GPU: _framework_finds_no_gpu,
    Cause.FRAMEWORK_UNSUPPORTED: lambda facts, module: (_answer(facts, module, "obstacle"), _newer_autogpu(module)),
    Cause.FRAMEWORK_UNUSABLE: lambda facts, module: (
        f"{load(module).NAME} can't be used: {_answer(facts, module, 'error')}",
        f"correct this error; to see it in full: {facts.executable} -c 'import {module}'",
    ),
    Cause.FRAMEWORK_WITHOUT_CUDA: _framework_without_cuda,
    Cause.FRAMEWORK_WITHOUT_CUDA_OR_GPU: lambda facts, module: (
        f"{_name(facts, module)} is built without CUDA, and there is no GPU to use",
        "",
    ),
    Cause.FRAMEWORK_HOOKS_FOUND: lambda *_: ("autogpu finds every function that it hooks into", ""),
    Cause.FRAMEWORK_HOOKS_MISSING: lambda facts, module: (
        f"{_name(facts, module)} lacks {_missing_hooks(facts, module)}",
        _newer_autogpu(module),
    ),
    Cause.FRAMEWORK_HOOKS_NEED_CUDA: lambda _, module: (
        f"nothing to hook into in a {load(module).NAME} without CUDA",
        "",
    ),
}
