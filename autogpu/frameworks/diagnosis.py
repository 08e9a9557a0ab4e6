"""``autogpu doctor`` asks the frameworks of an environment, and judges their answers."""

from __future__ import annotations

from typing import Any, Mapping

from autogpu.doctor.model import Facts, Finding, failed, passed
from autogpu.reporting.text import counted, printable

# By top-level module, Python source that puts answers into ``found``, ``uses_gpus`` among them, after the import.
QUESTIONS = {
    "tensorflow": """
found["has_cuda"] = bool(tensorflow.test.is_built_with_cuda())
found["gpus"] = len(tensorflow.config.experimental.list_physical_devices("GPU"))
found["uses_gpus"] = found["has_cuda"]
""",
    # No GPU gets a context.
    "torch": """
found["cuda"] = torch.version.cuda
found["is_available"] = bool(torch.cuda.is_available())
found["gpus"] = torch.cuda.device_count()
found["uses_gpus"] = bool(found["cuda"])
""",
    # JAX is not asked for its devices: it would make a context on each.
    "jax": """
import pkgutil
found["plugins"] = []
try:
    import jax_plugins
    plugins = [name for _, name, _ in pkgutil.iter_modules(jax_plugins.__path__)]
    found["plugins"] = [name for name in plugins if name.startswith("xla_cuda")]
except ImportError:
    pass
found["uses_gpus"] = bool(found["plugins"])
""",
}


def _judge_tensorflow(found: Mapping[str, Any], facts: Facts) -> Finding:
    """TensorFlow is built for GPUs, and finds the libraries that it needs for those that are there."""
    version, devices = printable(found["version"]), facts.inventory.devices
    name, cuda = f"TensorFlow {version}", "install 'tensorflow[and-cuda]"
    if not found["has_cuda"] and facts.inventory.has_no_driver:
        return passed(f"{name}, built without CUDA, as there is no GPU")
    if not found["has_cuda"]:
        return failed(f"{name} is built without CUDA and uses no GPU", facts.pip(f"{cuda}'"))
    if devices and not found["gpus"] and not facts.hides_all_gpus:
        command = "import tensorflow as tf; tf.config.list_physical_devices()"
        names = f"TF_CPP_MIN_LOG_LEVEL=0 {facts.executable} -c '{command}' names the libraries that it looks for"
        what = f"{name} lists no GPU of {len(devices)}: it finds no CUDA libraries that fit"
        return failed(what, facts.pip(f"{cuda}=={version}'") + f"; {names}")
    return passed(f"{name}, built with CUDA, lists {counted(found['gpus'], 'GPU')}")


def _judge_torch(found: Mapping[str, Any], facts: Facts) -> Finding:
    """PyTorch is built for CUDA, and finds the GPUs that are there."""
    version, cuda, devices = printable(found["version"]), found["cuda"], facts.inventory.devices
    if not cuda and not devices:
        return passed(f"PyTorch {version}, built without CUDA, as there is no GPU")
    if not cuda:
        what = f"PyTorch {version} is built without CUDA and uses no GPU"
        return failed(what, "https://pytorch.org/get-started/locally names the wheel for this machine")
    if devices and not found["is_available"] and not facts.hides_all_gpus:
        what = f"PyTorch {version} finds no GPU of {len(devices)}: is the driver too old for CUDA {cuda}?"
        return failed(what, f"{facts.executable} -c 'import torch; torch.cuda.init()' says why")
    return passed(f"PyTorch {version}, built for CUDA {cuda}, lists {counted(found['gpus'], 'GPU')}")


def _judge_jax(found: Mapping[str, Any], facts: Facts) -> Finding:
    """JAX has the plug-in by which it uses a GPU."""
    version = printable(found["version"])
    if found["plugins"]:
        return passed(f"JAX {version} with {printable(', '.join(found['plugins']))}")
    if not facts.inventory.devices:
        return passed(f"JAX {version} without a plug-in for CUDA, as there is no GPU")
    what = f"JAX {version} has no plug-in for CUDA and uses no GPU"
    return failed(what, facts.pip(f"install 'jax[cuda12]=={version}'"))


JUDGES = {"tensorflow": _judge_tensorflow, "torch": _judge_torch, "jax": _judge_jax}
