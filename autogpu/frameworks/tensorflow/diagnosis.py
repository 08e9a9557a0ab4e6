"""``autogpu doctor`` asks the TensorFlow of an environment, and judges the answer."""

from __future__ import annotations

from typing import Any, Mapping

from autogpu.doctor.model import Facts, Finding, failed, passed
from autogpu.reporting.text import counted, printable

QUESTIONS = """
found["has_cuda"] = bool(tensorflow.test.is_built_with_cuda())
found["gpus"] = len(tensorflow.config.experimental.list_physical_devices("GPU"))
found["is_cpu_package"] = False
try:
    from importlib import metadata  # not in Python 3.7
    metadata.version("tensorflow-cpu")
    found["is_cpu_package"] = True
except ImportError:  # PackageNotFoundError is one
    pass
found["uses_gpus"] = found["has_cuda"]
"""


def judge(found: Mapping[str, Any], facts: Facts) -> Finding:
    """TensorFlow is built for GPUs, and finds the libraries that it needs for those that are there."""
    version, devices = printable(found["version"]), facts.inventory.devices
    name, cuda = f"TensorFlow {version}", "install 'tensorflow[and-cuda]"
    if not found["has_cuda"] and facts.inventory.has_no_driver:
        return passed(f"{name}, built without CUDA, as there is no GPU")
    if not found["has_cuda"]:
        # Both packages write into one folder: the second over the first, and the first's removal takes that away.
        remove = facts.pip("uninstall tensorflow-cpu") + " && " if found.get("is_cpu_package") else ""
        return failed(f"{name} is built without CUDA and uses no GPU", remove + facts.pip(f"{cuda}'"))
    if devices and not found["gpus"] and not facts.hides_all_gpus:
        command = "import tensorflow as tf; tf.config.list_physical_devices()"
        names = f"TF_CPP_MIN_LOG_LEVEL=0 {facts.executable} -c '{command}' names the libraries that it looks for"
        what = f"{name} lists no GPU of {len(devices)}: it finds no CUDA libraries that fit"
        return failed(what, facts.pip(f"{cuda}=={version}'") + f"; {names}")
    return passed(f"{name}, built with CUDA, lists {counted(found['gpus'], 'GPU')}")
