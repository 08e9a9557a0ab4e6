"""``autogpu doctor`` asks the TensorFlow of an environment, and judges the answer."""

from __future__ import annotations

from typing import Any, Mapping

from autogpu.doctor.model import Facts, Finding, failed, not_applicable, passed
from autogpu.frameworks.diagnosis import hooks, program
from autogpu.frameworks.tensorflow.settings import FORCE_GROWTH
from autogpu.reporting.text import counted, printable

PROGRAM = program(
    "tensorflow",
    """
found["has_cuda"] = bool(tensorflow.test.is_built_with_cuda())
found["has_rocm"] = bool(getattr(tensorflow.test, "is_built_with_rocm", bool)())
found["gpus"] = len(tensorflow.config.experimental.list_physical_devices("GPU"))
found["is_cpu_package"] = False
try:
    from importlib import metadata  # not in Python 3.7
    metadata.version("tensorflow-cpu")
    found["is_cpu_package"] = True
except ImportError:  # PackageNotFoundError is one
    pass
""",
)


def _check_growth(found: Mapping[str, Any], facts: Facts) -> Finding:
    value = facts.environ.get(FORCE_GROWTH)
    if value is None:
        return not_applicable(f"{FORCE_GROWTH} is not set")
    if value in ("true", "false"):
        return passed(f"{FORCE_GROWTH}={value} overrides the policy's memory.growth")
    meant = "false" if value.strip().lower() in ("0", "false", "no", "off", "") else "true"
    what = f'{FORCE_GROWTH}="{printable(value)}" has no effect: TensorFlow accepts only "true" and "false"'
    return failed(what, f"export {FORCE_GROWTH}={meant}")


def _check_build(found: Mapping[str, Any], facts: Facts) -> Finding:
    install = facts.pip("install 'tensorflow[and-cuda]'")
    if not found:
        return failed(f"no TensorFlow, PyTorch or JAX in this environment ({facts.executable})", install)
    name = f"TensorFlow {found['version']}"
    if found["has_rocm"]:
        what = f"{name} is built for AMD GPUs, and autogpu does nothing for it"
        return failed(what, "set HIP_VISIBLE_DEVICES to choose a GPU")
    if found["has_cuda"]:
        return passed(f"{name}, built with CUDA")
    if facts.inventory.has_no_driver:
        return passed(f"{name}, built without CUDA, as there is no GPU")
    # Both packages write into one folder: the second over the first, and the first's removal takes that away.
    remove = facts.pip("uninstall tensorflow-cpu") + " && " if found.get("is_cpu_package") else ""
    return failed(f"{name} is built without CUDA and uses no GPU", remove + install)


def _check_libraries(found: Mapping[str, Any], facts: Facts) -> Finding:
    devices = facts.inventory.devices
    if not found.get("has_cuda") or not devices:
        return not_applicable("nothing to compare")
    if found["gpus"] or facts.hides_all_gpus:
        return passed(f"TensorFlow lists {counted(found['gpus'], 'GPU')}")
    version = found["version"]
    what = f"TensorFlow {version} lists no GPU of {len(devices)}: it finds no CUDA libraries that fit"
    remedy = (
        facts.pip(f"install 'tensorflow[and-cuda]=={version}'") + "; "
        f"TF_CPP_MIN_LOG_LEVEL=0 {facts.executable} -c 'import tensorflow as tf; tf.config.list_physical_devices()' "
        "names the libraries that it looks for"
    )
    return failed(what, remedy)


CHECKS = {
    "growth": _check_growth,
    "tensorflow": _check_build,
    "libraries": _check_libraries,
    "hooks": lambda found, facts: hooks(found, facts, "TensorFlow", is_used=not found.get("has_rocm")),
}
