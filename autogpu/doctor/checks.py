"""Each check is a pure function of the facts, and ends with a remedy that can be pasted."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from autogpu.doctor.facts import Facts
from autogpu.lease.folder import HOST_FOLDER
from autogpu.pool import VISIBLE
from autogpu.stderr import shown

# sudo has a PATH of its own, in which an environment's autogpu is not.
_HOST_SETUP = "sudo $(command -v autogpu) host-setup"

GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"

# CUresult of the CUDA driver API.
_CUDA_ERRORS = {
    3: "the driver is not initialised",
    100: "there is no GPU that CUDA can use",
    802: "the system is not ready: is nvidia-fabricmanager running?",
    803: "the driver and its library are of different versions",
    804: "the compatibility package does not fit this GPU",
    999: "unknown error",
}


class State(enum.Enum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True)
class Finding:
    """One check.

    Attributes:
        name: Stable, for programs: ``hook``.
        what: What was seen, as a sentence.
        remedy: What to type or change; empty where nothing needs to be done.
    """

    name: str
    state: State
    what: str
    remedy: str = ""


def examine(facts: Facts) -> tuple[Finding, ...]:
    """Every check, in the order in which one thing rests on another."""
    return tuple(check(facts) for check in CHECKS)


def _passed(name: str, what: str) -> Finding:
    return Finding(name, State.PASSED, what)


def _failed(name: str, what: str, remedy: str) -> Finding:
    return Finding(name, State.FAILED, what, remedy)


def _not_applicable(name: str, what: str) -> Finding:
    return Finding(name, State.NOT_APPLICABLE, what)


def _switch(facts: Facts) -> Finding:
    if facts.resolved.policy.enabled:
        return _passed("switch", "autogpu is switched on")
    origin = facts.resolved.settings["enabled"].origin
    remedy = "unset AUTOGPU" if origin.variable == "AUTOGPU" else f"set enabled = true there ({origin})"
    return _failed("switch", f"autogpu is switched off by {origin}", remedy)


def _hook(facts: Facts) -> Finding:
    start, remedy = facts.start, f"{facts.executable} -m autogpu install"
    if start.hook is not None:
        return _passed("hook", f"a fresh {facts.executable} loads {start.hook}")
    if start.complaint:
        return _failed("hook", f"a fresh Python says: {shown(start.complaint)}", remedy)
    hidden = f"; its sitecustomize is {start.sitecustomize}" if start.sitecustomize else ""
    return _failed("hook", f"a fresh {facts.executable} does not load autogpu{hidden}", remedy)


def _environment(facts: Facts) -> Finding:
    if not facts.pythons:
        return _passed("environment", f"`python` is the one that has autogpu, {facts.executable}")
    others = " and ".join(f"`{name}` is {path}" for name, path in facts.pythons.items())
    what = f"{others}: another environment than autogpu's, {facts.executable}"
    path = next(iter(facts.pythons.values()))
    remedy = (
        f'to use autogpu\'s: export PATH="{Path(facts.executable).parent}:$PATH"; '
        f"to have it in the other: {path} -m pip install {facts.source} && {path} -m autogpu install"
    )
    return _failed("environment", what, remedy)


def _driver(facts: Facts) -> Finding:
    inventory = facts.inventory
    if inventory.is_driverless and facts.cuda.count:
        what = "CUDA has GPUs, and NVML (libnvidia-ml.so.1) is not there: autogpu can't tell which is idle"
        remedy = "install all of the driver's libraries; in a container: -e NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        return _failed("driver", what, remedy)
    if inventory.is_driverless:
        what = "no NVIDIA driver here: scripts run on the CPU, as without autogpu"
        # Most often that is how the container was started, and nothing in it can tell.
        what += "; if the host has one, start the container with --gpus all" if facts.is_in_container else ""
        return _not_applicable("driver", what)
    if inventory.failure:
        remedy = "nvidia-smi should say the same; after an update of the driver restart the machine"
        if "ersion" in inventory.failure:
            remedy = "the driver was updated while its old module is loaded: sudo reboot"
        return _failed("driver", shown(inventory.failure), remedy)
    if inventory.unreadable:
        lost = "; ".join(f"GPU {each.index}: {shown(each.reason)}" for each in inventory.unreadable)
        remedy = "sudo dmesg | grep -i xid; a lost GPU needs a restart"
        return _failed("driver", f"not every GPU can be read: {lost}", remedy)
    count = len(inventory.devices)
    return _passed("driver", f"NVML {inventory.driver_version} reads {count} GPU{'' if count == 1 else 's'}")


def _cuda(facts: Facts) -> Finding:
    if facts.inventory.is_driverless:
        return _not_applicable("cuda", "no NVIDIA driver")
    cuda = facts.cuda
    if cuda.error:
        remedy = "install the driver's libcuda, or give the container the GPUs: docker run --gpus all"
        return _failed("cuda", f"libcuda.so.1: {shown(cuda.error)}", remedy)
    if cuda.code:
        why = _CUDA_ERRORS.get(cuda.code, "see CUresult in the CUDA driver API")
        return _failed("cuda", f"cuInit fails with {cuda.code}: {why}", "sudo reboot, or install the driver again")
    readable = len(facts.inventory.devices) + len(facts.inventory.unreadable)
    if readable and cuda.count != readable and not any(device.mig_enabled for device in facts.inventory.devices):
        what = f"CUDA sees {cuda.count} GPUs and NVML {readable}"
        return _failed("cuda", what, "give the container all of /dev/nvidia*, or as many GPUs to both")
    return _passed("cuda", f"CUDA {cuda.version // 1000}.{cuda.version % 1000 // 10} sees {cuda.count} of them")


def _visible(facts: Facts) -> Finding:
    value = facts.environ.get(VISIBLE)
    if facts.inventory.is_driverless:
        return _not_applicable("visible", "no GPU to hide")
    if value is None:
        return _not_applicable("visible", f"{VISIBLE} is not set: every GPU may be used")
    if value.strip() == "" or value.strip().startswith("-") or value.strip().lower() == "nodevfiles":
        return _failed("visible", f'{VISIBLE}="{shown(value)}" hides every GPU from this shell', f"unset {VISIBLE}")
    return _passed("visible", f"{VISIBLE}={shown(value)}: autogpu chooses among these")


def _tensorflow(facts: Facts) -> Finding:
    found = facts.tensorflow
    if found is None:
        remedy = f"{facts.executable} -m pip install 'tensorflow[and-cuda]'"
        return _failed("tensorflow", f"no TensorFlow in this environment ({facts.executable})", remedy)
    if found.error:
        return _failed("tensorflow", f"TensorFlow can't be used: {shown(found.error)}", "repair TensorFlow first")
    if found.has_rocm:
        what = f"TensorFlow {found.version} is built for AMD's GPUs, and autogpu does nothing for it"
        return _failed("tensorflow", what, "HIP_VISIBLE_DEVICES chooses there")
    if not found.has_cuda and facts.inventory.is_driverless:
        return _passed("tensorflow", f"TensorFlow {found.version}, built without CUDA, as there is no GPU")
    if not found.has_cuda:
        remedy = f"{facts.executable} -m pip install 'tensorflow[and-cuda]'"
        return _failed("tensorflow", f"TensorFlow {found.version} is built without CUDA and uses no GPU", remedy)
    return _passed("tensorflow", f"TensorFlow {found.version}, built with CUDA")


def _libraries(facts: Facts) -> Finding:
    found = facts.tensorflow
    if found is None or found.error or not found.has_cuda or facts.inventory.is_driverless or facts.inventory.failure:
        return _not_applicable("libraries", "nothing to compare")
    hides = _visible(facts).state is State.FAILED
    if found.gpus or hides:
        return _passed("libraries", f"TensorFlow lists {found.gpus} GPUs")
    count = len(facts.inventory.devices)
    what = f"TensorFlow {found.version} lists no GPU of {count}: it finds no CUDA libraries that fit"
    remedy = (
        f"{facts.executable} -m pip install 'tensorflow[and-cuda]=={found.version}'; "
        f"TF_CPP_MIN_LOG_LEVEL=0 {facts.executable} -c 'import tensorflow as tf; tf.config.list_physical_devices()' "
        "names what it looks for"
    )
    return _failed("libraries", what, remedy)


def _seams(facts: Facts) -> Finding:
    found = facts.tensorflow
    if found is None or found.error or found.has_rocm:
        return _not_applicable("seams", "nothing to hook into")
    if found.is_known and not found.missing:
        return _passed("seams", "autogpu finds all that it hooks into")
    remedy = f"{facts.executable} -m pip install --upgrade {facts.source}"
    lacks = "; ".join(f"{name}: {effect}" for name, effect in found.missing.items())
    return _failed("seams", f"TensorFlow {found.version} lacks {shown(lacks)}", remedy)


def _growth(facts: Facts) -> Finding:
    value = facts.environ.get(GROWTH)
    if value is None:
        return _not_applicable("growth", f"{GROWTH} is not set")
    if value in ("true", "false"):
        return _passed("growth", f"{GROWTH}={value} stands above the policy's memory.growth")
    meant = "false" if value.strip().lower() in ("0", "false", "no", "off", "") else "true"
    what = f'{GROWTH}="{shown(value)}" has no effect: TensorFlow knows "true" and "false", in small letters'
    return _failed("growth", what, f"export {GROWTH}={meant}")


def _folder(facts: Facts) -> Finding:
    if facts.inventory.is_driverless:
        return _not_applicable("leases", "no GPU to claim")
    if facts.folder_error:
        what, remedy = facts.folder_error
        return _failed("leases", f"this user's jobs can't coordinate: {shown(what)}", shown(remedy))
    assert facts.folder is not None
    path = shown(str(facts.folder.path))
    if facts.folder.origin == "fallback" and facts.is_in_container:
        what = f"claims are in {path} of this container alone: jobs outside of it and these don't see each other"
        remedy = f"on the host: {_HOST_SETUP}; then docker run -v {HOST_FOLDER}:{HOST_FOLDER} ..."
        return _failed("leases", what, remedy)
    note = f", which belongs to its first user; `{_HOST_SETUP}` makes one for everybody"
    return _passed("leases", f"claims are in {path}" + (note if facts.folder.origin == "fallback" else ""))


def _policy(facts: Facts) -> Finding:
    problems = [str(problem) for problem in facts.resolved.problems]
    problems += [str(problem) for problem in facts.resolved.system_notes]
    if not problems:
        files = ", ".join(shown(str(file)) for file in facts.resolved.files) or "no file: the defaults hold"
        return _passed("policy", f"read without a problem ({files})")
    return _failed("policy", "; ".join(problems), "correct them; `autogpu config` shows what holds")


CHECKS: tuple[Callable[[Facts], Finding], ...] = (
    _switch,
    _hook,
    _environment,
    _policy,
    _driver,
    _cuda,
    _visible,
    _folder,
    _growth,
    _tensorflow,
    _libraries,
    _seams,
)
