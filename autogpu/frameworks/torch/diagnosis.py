"""What ``autogpu doctor`` asks of the PyTorch of an environment, and how it judges the answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping

from autogpu.doctor.model import Finding, failed, not_applicable, passed
from autogpu.frameworks.diagnosis import hooks_finding
from autogpu.reporting.text import counted, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autogpu.doctor.model import Surroundings

# Run by a fresh interpreter of the environment; prints null or an object as the last line. No GPU gets a context.
PROGRAM = """
import importlib.util, json
found = None
if importlib.util.find_spec("torch"):
    found = {}
    try:
        import torch
        found["version"], found["cuda"] = torch.__version__, torch.version.cuda
        from autogpu.frameworks.torch import find_hooks
        hooks = find_hooks()
        found["missing"], found["obstacle"] = dict(hooks.missing), hooks.obstacle
        found["is_available"] = bool(torch.cuda.is_available())
        found["gpus"] = torch.cuda.device_count()
    except Exception as error:
        found["error"] = "%s: %s" % (type(error).__name__, error)
print()
print(json.dumps(found))
"""

ENVIRONMENT: Mapping[str, str] = {}


@dataclass(frozen=True)
class Torch:
    """The PyTorch of an environment.

    Attributes:
        cuda: The version of CUDA that it is built for; ``None`` if it is built without.
        is_available: What ``torch.cuda.is_available()`` says.
        gpus: How many GPUs it lists.
        missing: What autogpu hooks into and this version lacks, with what is not in force.
        obstacle: Why autogpu does not touch this build; empty if it does.
        error: Why it can't be imported or asked; empty if it can.
    """

    version: str = "?"
    cuda: str | None = None
    is_available: bool = False
    gpus: int = 0
    missing: Mapping[str, str] = field(default_factory=dict)
    obstacle: str = ""
    error: str = ""


def examine(answer: Any, error: str, facts: Surroundings) -> tuple[Finding, ...]:
    """The findings about PyTorch; see :class:`autogpu.frameworks.base.Diagnosis`."""
    found = Torch(error=error) if error else Torch(**(answer or {}))
    hooks = not_applicable("torch-hooks", "nothing to hook into")
    if not found.error and (found.cuda or found.obstacle):
        hooks = hooks_finding(
            "torch-hooks", "PyTorch", found.version, facts, obstacle=found.obstacle, missing=found.missing
        )
    return (_check_build(found, facts), hooks)


def _check_build(found: Torch, facts: Surroundings) -> Finding:
    version, devices = printable(found.version), facts.inventory.devices
    if found.error:
        return failed("torch", f"PyTorch can't be used: {printable(found.error)}", "repair PyTorch first")
    if found.obstacle:
        return failed("torch", printable(found.obstacle), "set HIP_VISIBLE_DEVICES to choose a GPU")
    if not found.cuda and not devices:
        return passed("torch", f"PyTorch {version}, built without CUDA, as there is no GPU")
    if not found.cuda:
        what = f"PyTorch {version} is built without CUDA and uses no GPU"
        return failed("torch", what, "https://pytorch.org/get-started/locally names the wheel for this machine")
    if devices and not found.is_available and not facts.hides_all_gpus:
        what = f"PyTorch {version} finds no GPU of {len(devices)}: is the driver too old for CUDA {found.cuda}?"
        return failed("torch", what, f"{facts.executable} -c 'import torch; torch.cuda.init()' says why")
    return passed("torch", f"PyTorch {version}, built for CUDA {found.cuda}, lists {counted(found.gpus, 'GPU')}")
