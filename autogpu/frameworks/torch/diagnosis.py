"""``autogpu doctor`` asks the PyTorch of an environment, and judges the answer."""

from __future__ import annotations

from typing import Any, Mapping

from autogpu.doctor.model import Facts, Finding, failed, passed
from autogpu.reporting.text import counted, printable

# No GPU gets a context.
QUESTIONS = """
found["cuda"] = torch.version.cuda
found["is_available"] = bool(torch.cuda.is_available())
found["gpus"] = torch.cuda.device_count()
found["uses_gpus"] = bool(found["cuda"])
"""


def judge(found: Mapping[str, Any], facts: Facts) -> Finding:
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
