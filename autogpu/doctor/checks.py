"""Each check is a pure function of the facts, and ends with a remedy that can be pasted."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Mapping

from autogpu import frameworks
from autogpu.devices.enumeration import cards, takeable
from autogpu.devices.nvml import NO_ANSWER
from autogpu.doctor.model import Facts, Finding, failed, not_applicable, passed, warned
from autogpu.frameworks.diagnosis import JUDGES
from autogpu.install import TIMED_OUT
from autogpu.lease.folder import FALLBACK_FOLDER, HOST_FOLDER
from autogpu.reporting.text import counted, host_setup_command, listed, printable
from autogpu.selection import explain
from autogpu.selection.model import VisibleSpec
from autogpu.selection.ranking import unmatched_lists
from autogpu.variables import CUDA_VISIBLE_DEVICES, LEASE_DIR, SWITCH

_WHEN_LESS_BUSY = "run `autogpu doctor` again when the machine is less busy"

# CUresult of the CUDA driver API.
_CUDA_ERRORS = {
    3: "the driver is not initialised",
    100: "there is no GPU that CUDA can use",
    802: "the system is not ready: is nvidia-fabricmanager running?",
    803: "the driver and its library are of different versions",
    804: "the compatibility package does not fit this GPU",
    999: "unknown error",
}


def examine(facts: Facts) -> dict[str, Finding]:
    """The findings by their checks; those of installed frameworks last."""
    findings = {check.__name__: check(facts) for check in CHECKS}
    installed = {module: found for module, found in facts.frameworks.items() if found is not None}
    for module, found in installed.items():
        findings.update(_examine_framework(module, found, facts))
    if not installed:
        what = f"this environment ({facts.executable}) has none of {', '.join(facts.frameworks)}"
        findings["frameworks"] = failed(what, facts.pip(f"install {frameworks.TO_INSTALL}"))
    return findings


def _examine_framework(module: str, found: Mapping[str, Any], facts: Facts) -> dict[str, Finding]:
    framework, newer = frameworks.load(module), facts.pip(f"install --upgrade {facts.source}")
    error, obstacle = (printable(found.get(key, "")) for key in ("error", "obstacle"))
    if error.startswith(TIMED_OUT):
        what = f"to import {framework.NAME} {error}: the machine may only be busy"
        return {module: warned(what, _WHEN_LESS_BUSY)}
    if error:
        return {module: failed(f"{framework.NAME} can't be used: {error}", f"repair {framework.NAME} first")}
    if obstacle:
        remedy = "set HIP_VISIBLE_DEVICES to choose a GPU" if "ROCm" in obstacle else newer
        return {module: failed(obstacle, remedy)}
    build = JUDGES[module](found, facts)
    hooks = passed("autogpu finds all that it hooks into")
    if not found["uses_gpus"]:
        hooks = not_applicable("nothing to hook into")
    elif found["missing"]:
        lacks = "; ".join(f"{name}: {effect}" for name, effect in found["missing"].items())
        hooks = failed(f"{framework.NAME} {found['version']} lacks {printable(lacks)}", newer)
    return {module: build, f"{module}-hooks": hooks}


def switch(facts: Facts) -> Finding:
    if facts.resolved.policy.enabled:
        return passed("autogpu is switched on")
    origin = facts.resolved.settings["enabled"].origin
    remedy = f"unset {SWITCH}" if origin.place == SWITCH else f"set enabled = true there ({origin})"
    return failed(f"autogpu is switched off by {origin}", remedy)


def hook(facts: Facts) -> Finding:
    start, remedy = facts.start, f"{facts.executable} -m autogpu install"
    if start.hook is not None and not facts.hook_is_current:
        return failed(f"{start.hook} is of another version of autogpu than the package", remedy)
    if start.hook is not None:
        return passed(f"a fresh {facts.executable} loads {start.hook}")
    if TIMED_OUT in start.complaint:
        return warned(f"a fresh {facts.executable} {printable(start.complaint)}", _WHEN_LESS_BUSY)
    if start.complaint:
        return failed(f"a fresh Python reports: {printable(start.complaint)}", remedy)
    hidden = f"; its sitecustomize is {start.sitecustomize}" if start.sitecustomize else ""
    return failed(f"a fresh {facts.executable} does not load autogpu{hidden}", remedy)


def environment(facts: Facts) -> Finding:
    if not facts.pythons:
        return passed(f"`python` is the one that has autogpu, {facts.executable}")
    others = " and ".join(f"`{name}` is {path}" for name, path in facts.pythons.items())
    what = f"{others}: another environment than autogpu's, {facts.executable}"
    return failed(what, f'export PATH="{Path(facts.executable).parent}:$PATH", or install autogpu there as well')


def pynvml(facts: Facts) -> Finding:
    inventory, pip = facts.inventory, facts.pip("install --upgrade nvidia-ml-py")
    if inventory.failure_cause == "pynvml":
        return failed(f"{printable(str(inventory.failure))}: autogpu can't tell which GPU is idle", pip)
    return passed("pynvml can be used")


def driver(facts: Facts) -> Finding:
    inventory = facts.inventory
    if inventory.failure_cause == "pynvml":
        return not_applicable("it can't be read without pynvml")
    if inventory.has_no_driver and facts.cuda.count:
        what = "CUDA has GPUs, and NVML (libnvidia-ml.so.1) is not there: autogpu can't tell which is idle"
        remedy = "install all of the driver's libraries; in a container: -e NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        return failed(what, remedy)
    if inventory.has_no_driver:
        what = "no NVIDIA driver here: scripts run on the CPU, as without autogpu"
        # Most often that is how the container was started, and nothing in it can tell.
        what += "; if the host has one, start the container with --gpus all" if facts.is_in_container else ""
        return not_applicable(what)
    lost = "; ".join(f"GPU {each.index}: {printable(each.reason)}" for each in inventory.unreadable)
    xid = f"{facts.sudo}dmesg | grep -i xid; a lost GPU needs a restart"
    if TIMED_OUT in (inventory.failure or "") or (lost and all(g.reason == NO_ANSWER for g in inventory.unreadable)):
        what = f"{printable(inventory.failure or lost)}: the driver may only be busy"
        return warned(what, f"{_WHEN_LESS_BUSY}, and if it stays so: {xid}")
    if inventory.failure:
        remedy = "nvidia-smi should report the same; after an update of the driver restart the machine"
        if "ersion" in inventory.failure:
            remedy = f"the driver was updated while its old module is loaded: {facts.sudo}reboot"
        return failed(printable(inventory.failure), remedy)
    if lost:
        return failed(f"not every GPU can be read: {lost}", xid)
    gpus = counted(len(cards(inventory.devices)), "GPU")
    denied = f"; {inventory.denied} more not granted to this process" if inventory.denied else ""
    return passed(f"NVML {inventory.driver_version} reads {gpus}{denied}")


def health(facts: Facts) -> Finding:
    devices = cards(facts.inventory.devices)
    if not devices:
        return not_applicable("no GPU to examine")
    bad = [f"GPU {device.index}: {listed(device.health_problems)}" for device in devices if device.health_problems]
    remedies = []
    faulty = [device.index for device in devices if device.memory_faults]
    if faulty:
        reset = f"have {explain.gpu_names(faulty)} reset (`nvidia-smi --gpu-reset`, with nothing on it)"
        remedies.append(f"{reset} or the machine rebooted; a card whose faults come back is to be replaced")
    if any(device.is_too_hot for device in devices):
        remedies.append("see to the cooling")
    uncut = [device.label for device in takeable(facts.inventory.devices) if device.mig_enabled]
    if uncut:
        bad.append(
            f"{explain.gpu_names(uncut)}: in MIG mode, and no instance can be read here, so that no job can use it"
        )
        smi, each = f"{facts.sudo}nvidia-smi", ",".join(uncut)
        remedies.append(f"to use it whole: {smi} -i {each} -mig 0; to cut it: {smi} mig -i {each} -lgip")
        remedies.append("a container is started with an instance by its UUID: --gpus device=UUID")
    return failed("; ".join(bad), "; ".join(remedies)) if bad else passed("the driver tells of no fault of a GPU")


def cuda(facts: Facts) -> Finding:
    if facts.inventory.has_no_driver:
        return not_applicable("no NVIDIA driver")
    if not facts.inventory.devices and (facts.grant.is_none or facts.inventory.denied):
        return not_applicable("no GPU is granted to this process")
    cuda = facts.cuda
    if cuda.error.startswith(TIMED_OUT):
        return warned(f"libcuda.so.1 {cuda.error}: the driver may only be busy", _WHEN_LESS_BUSY)
    if cuda.error:
        remedy = "install the driver's libcuda, or give the container the GPUs: docker run --gpus all"
        return failed(f"libcuda.so.1: {printable(cuda.error)}", remedy)
    if cuda.code:
        why = _CUDA_ERRORS.get(cuda.code, "see CUresult in the CUDA driver API")
        return failed(f"cuInit fails with {cuda.code}: {why}", f"{facts.sudo}reboot, or install the driver again")
    readable = len(facts.inventory.devices) + len(facts.inventory.unreadable)
    if readable and cuda.count != readable and not any(device.mig_enabled for device in facts.inventory.devices):
        what = f"CUDA sees {counted(cuda.count, 'GPU')} and NVML {readable}"
        return failed(what, "give the container all of /dev/nvidia*, or as many GPUs to both")
    return passed(f"CUDA {cuda.version // 1000}.{cuda.version % 1000 // 10} sees {cuda.count} of them")


def visible(facts: Facts) -> Finding:
    value = facts.environ.get(CUDA_VISIBLE_DEVICES)
    if facts.inventory.has_no_driver:
        return not_applicable("no GPU to hide")
    if facts.grant.is_none:
        return not_applicable(f"{facts.grant.why}; {facts.grant.remedy}")
    if value is None:
        return not_applicable(f"{CUDA_VISIBLE_DEVICES} is not set: every GPU may be used")
    if facts.hides_all_gpus:
        what = f'{CUDA_VISIBLE_DEVICES}="{printable(value)}" hides every GPU from this shell'
        return failed(what, f"unset {CUDA_VISIBLE_DEVICES}")
    by = f", granted by {facts.grant.engine}" if facts.grant.engine else ""
    return passed(f"{CUDA_VISIBLE_DEVICES}={printable(value)}{by}: autogpu chooses among these")


def leases(facts: Facts) -> Finding:
    if facts.inventory.has_no_driver:
        return not_applicable("no GPU to claim")
    if facts.folder_error:
        return failed(printable(facts.folder_error.what), printable(facts.folder_error.remedy))
    named = facts.environ.get(LEASE_DIR)
    path = printable(str(facts.folder.path) if facts.folder else named or str(FALLBACK_FOLDER))
    is_fallback = facts.folder.origin == "fallback" if facts.folder else not named
    if is_fallback and facts.is_in_container:
        what = f"claims are in {path} of this container only: jobs inside and outside of it don't see each other"
        on_host = host_setup_command("sudo ")
        remedy = f"on the host: {on_host}; then start the container with -v {HOST_FOLDER}:{HOST_FOLDER}"
        return failed(what, remedy)
    note = f", which belongs to its first user; `{host_setup_command(facts.sudo)}` makes one for all users"
    when = "" if facts.folder else ", which the first one makes"
    return passed(f"claims are in {path}{when}" + (note if is_fallback else ""))


def policy(facts: Facts) -> Finding:
    resolved, spec = facts.resolved, VisibleSpec(facts.environ.get(CUDA_VISIBLE_DEVICES))
    unmatched = unmatched_lists(resolved, facts.inventory, spec)
    problems = [*map(str, resolved.problems), *map(str, resolved.system_notes), *unmatched]
    if not problems:
        files = ", ".join(printable(str(file)) for file in resolved.files) or "no file: the defaults are used"
        return passed(f"read without a problem ({files})")
    return failed("; ".join(problems), "correct them; `autogpu config` shows the values in use, and where each is set")


# In the order in which one thing rests on another.
CHECKS = (switch, hook, environment, policy, pynvml, driver, health, cuda, visible, leases)
